"""What is wrong with tasks, settings and the server before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, Locks, admin


def lint(locks: Locks, server: dict[str, str] | None = None, **conf: Any) -> set[tuple[str, str]]:
    app = Celery("t", broker="redis://nowhere", set_as_current=False)
    app.conf.update(conf)
    locked: dict[str, Any] = {"base": LockedTask, "shared": False}

    @app.task(name="late", acks_late=True, lock_key="{task}:{n}", **locked)
    def late(n: int) -> None: ...

    @app.task(
        name="waits", time_limit=20, lock_ttl=30, lock_on_conflict="wait", lock_wait=60, **locked
    )
    def waits() -> None: ...

    @app.task(name="open", lock_enabled=False, **locked)
    def open_() -> None: ...

    return {(finding.where, finding.level) for finding in admin.check(locks, app)}


def test_check_of_tasks(locks: Locks) -> None:
    found = lint(locks)
    assert ("waits", "warning") in found
    assert ("waits", "note") in found
    assert ("late", "note") in found
    assert ("late", "warning") not in found
    assert not any(where == "open" for where, _ in found)


def test_check_of_redelivery(locks: Locks) -> None:
    short = {"broker_transport_options": {"visibility_timeout": 20}}
    assert ("late", "warning") in lint(locks, **short)
    assert ("late", "warning") in lint(locks, locks_keep_invisible=False)
    assert ("late", "warning") not in lint(locks, locks_keep_invisible=False, task_time_limit=60)


def test_check_of_settings(locks: Locks) -> None:
    found = lint(locks, task_always_eager=True, worker_enable_remote_control=False)
    assert {("settings", "warning"), ("settings", "note")} <= found


@pytest.mark.parametrize(
    ("fields", "levels"),
    [
        ({"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "role": "master"}, []),
        ({"redis_version": "6.0.9"}, ["error"]),
        ({"redis_version": "7.2.4", "maxmemory_policy": "allkeys-lru"}, ["error"]),
        ({"redis_version": "7.2.4", "maxmemory_policy": "volatile-lru"}, []),
        ({"redis_version": "7.2.4", "role": "slave"}, ["error"]),
        ({}, ["note"]),
    ],
)
def test_check_of_the_server(
    locks: Locks, fields: dict[str, str], levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(locks), "perform", lambda self, call: fields)
    assert [finding.level for finding in admin.check_server(locks)] == levels


def bill(n: int) -> None: ...


def test_check_tells_which_tasks_share_a_key(locks: Locks) -> None:
    """Two tasks that were not meant to exclude each other skip each other's jobs."""
    app = Celery("t", broker="redis://nowhere", set_as_current=False)
    locked: dict[str, Any] = {"base": LockedTask, "shared": False}
    app.task(name="bill", lock_key="invoice:{n}", **locked)(bill)
    app.task(name="mail", lock_key="invoice:{n}", **locked)(bill)
    app.task(name="own1", lock_key="{task}:{n}", **locked)(bill)
    app.task(name="own2", lock_key="{task}:{n}", **locked)(bill)
    app.task(name="pay", lock_key="pay:{n}", lock_once=60, **locked)(bill)
    app.task(name="pay2", lock_key="pay:{n}", **locked)(bill)
    found = {
        (it.where, it.level): it.sentence
        for it in admin.check(locks, app)
        if "the same key" in it.sentence
    }
    assert found == {
        ("bill", "note"): "It has the same key 'invoice:{n}' as mail: they share their locks. "
        "If that is not intended, add {task} to the key.",
        ("mail", "note"): "It has the same key 'invoice:{n}' as bill: they share their locks. "
        "If that is not intended, add {task} to the key.",
        ("pay", "warning"): "It has the same key 'pay:{n}' as pay2: they share their locks and "
        "the results that once stores. If that is not intended, add {task} to the key.",
        ("pay2", "warning"): "It has the same key 'pay:{n}' as pay: they share their locks and "
        "the results that once stores. If that is not intended, add {task} to the key.",
    }
