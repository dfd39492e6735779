"""What is wrong with tasks, settings and the server before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, Locks, admin
from celery_locks.errors import ServerRefused


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


def test_check_reports_different_limits(locks: Locks) -> None:
    """Each caller is granted a slot by its own limit, which is rarely what was meant."""
    app = Celery("t", broker="redis://nowhere", set_as_current=False)
    locked: dict[str, Any] = {"base": LockedTask, "shared": False, "lock_key": "api:{n}"}
    app.task(name="three", lock_limit=3, **locked)(bill)
    app.task(name="five", lock_limit=5, **locked)(bill)
    with locks.hold("api:1", limit=3), locks.hold("api:1", limit=5):
        found = [it for it in admin.check(locks, app) if "different limits" in it.sentence]
    assert {(it.where, it.level) for it in found} == {
        ("three", "warning"),
        ("five", "warning"),
        ("lock 'api:1'", "warning"),
    }
    assert all("3 and 5" in it.sentence for it in found)


def found_for_parking(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, policy: str, info: dict[str, str], save: Any
) -> list[str]:
    """What `check` says about a server with these settings, with one task of this policy."""
    app = Celery("t", broker="redis://nowhere", set_as_current=False)
    locked: dict[str, Any] = {"base": LockedTask, "shared": False, "time_limit": 9, "lock_ttl": 5}
    app.task(name="bill", lock_key="invoice:{n}", lock_on_conflict=policy, **locked)(bill)
    performed = locks.perform

    def perform(call: Any) -> Any:
        if call.script.name == "server":
            return {"redis_version": "7.2.4", "role": "master", **info}
        if call.script.name != "CONFIG":
            return performed(call)
        if isinstance(save, Exception):
            raise save
        return save

    monkeypatch.setattr(type(locks), "perform", lambda self, call: perform(call))
    findings = admin.check(locks, app)
    return [it.sentence for it in findings if it.where == "server" and it.level == "warning"]


REFUSED = ServerRefused("no permission for CONFIG")
DURABLE = {"aof_enabled": "1", "maxmemory": "0", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("info", "save", "words"),
    [
        (DURABLE, REFUSED, []),
        ({"aof_enabled": "0"}, "3600 1", []),
        ({"aof_enabled": "0"}, "", ["It does not persist: a restart loses the messages."]),
        ({"aof_enabled": "0"}, REFUSED, ["does not say whether it saves snapshots"]),
        ({"aof_enabled": "0"}, None, ["does not say whether it saves snapshots"]),
        ({}, REFUSED, []),
        ({**DURABLE, "maxmemory_policy": "volatile-lru"}, "", []),
        (
            {**DURABLE, "maxmemory": "99", "maxmemory_policy": "volatile-lru"},
            "",
            ["the marks of tasks that have run are evicted"],
        ),
        (
            {**DURABLE, "maxmemory": "99", "maxmemory_policy": "allkeys-lru"},
            "",
            ["the messages are evicted and their tasks never run"],
        ),
        ({**DURABLE, "maxmemory": "99"}, "", []),
    ],
)
def test_check_warns_if_the_server_may_lose_parked_messages(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, info: Any, save: Any, words: list[str]
) -> None:
    """The lock server stores messages now, and no broker has them."""
    found = found_for_parking(locks, monkeypatch, "park", info, save)
    assert len(found) == len(words)
    for sentence, expected in zip(found, words, strict=True):
        assert sentence.startswith("Messages of 'bill' are stored on it. ")
        assert expected in sentence


def test_check_of_a_server_without_parked_messages_asks_nothing_of_it(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    volatile = {"aof_enabled": "0", "maxmemory": "99", "maxmemory_policy": "volatile-lru"}
    assert found_for_parking(locks, monkeypatch, "skip", volatile, AssertionError("asked")) == []
