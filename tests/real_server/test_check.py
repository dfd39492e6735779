"""``check`` with real servers: what it says when nothing works, and what it looked at."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, _state

from celery_locks import LockedTask, Locks, LockUnavailable, admin
from celery_locks.admin import Finding
from tests.servers.embedded import EmbeddedServer
from tests.support.rabbitmq import RabbitMQ, is_installed


@pytest.fixture(autouse=True)
def no_shared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests of this process made with ``shared_task`` is in no app here."""
    found = _state._on_app_finalizers
    builtin = {each for each in found if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", builtin)


def app_on(broker: str, **conf: Any) -> Celery:
    app = Celery("checked", broker=broker, set_as_current=False)
    app.conf.update(conf)

    @app.task(name="bill", base=LockedTask, lock_key="invoice:{n}", time_limit=60, shared=False)
    def bill(n: int) -> None: ...

    @app.task(name="mail", shared=False)
    def mail() -> None: ...

    return app


def check(locks: Locks, app: Celery) -> list[Finding]:
    try:
        return admin.check(locks, app)
    finally:
        app.close()


def test_check_reports_a_full_server() -> None:
    """It answers every question but grants no lock: only a task would find that out."""
    with EmbeddedServer({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}) as server:
        locks = Locks.from_url(server.url)
        with pytest.raises(LockUnavailable):
            locks.acquire("a", ttl=3)
        [finding] = admin.check_server(locks)
        locks.close()
    assert (finding.level, finding.where) == ("error", "server")
    assert "It is full" in finding.sentence


def test_check_reports_a_broker_that_refuses_us(valkey: EmbeddedServer) -> None:
    """The locks work, but no worker gets a task; and the password is not in the sentence."""
    locks = Locks.from_url(valkey.url)
    with EmbeddedServer({"requirepass": "right"}) as server:
        wrong = f"redis://:Wr0ngPw@{server.host}:{server.port}/0"
        found = check(locks, app_on(wrong, locks_url=valkey.url))
        right = wrong.replace("Wr0ngPw", "right")
        good = check(locks, app_on(right, locks_url=valkey.url))
    locks.close()
    [error] = [finding for finding in found if finding.level == "error"]
    assert error.where == "broker"
    assert "cannot be reached" in error.sentence
    assert "invalid username-password pair" in error.sentence
    assert "Wr0ngPw" not in error.sentence
    assert [finding for finding in good if finding.level == "error"] == []


@pytest.mark.skipif(not is_installed(), reason="no RabbitMQ")
def test_check_asks_rabbitmq_too(valkey: EmbeddedServer) -> None:
    locks = Locks.from_url(valkey.url)
    with RabbitMQ() as rabbitmq:
        good = check(locks, app_on(rabbitmq.url, locks_url=valkey.url))
    away = check(locks, app_on(rabbitmq.url, locks_url=valkey.url))
    locks.close()
    assert [finding for finding in good if finding.level == "error"] == []
    assert [finding.where for finding in away if finding.level == "error"] == ["broker"]


def test_check_names_every_task_it_examined(valkey: EmbeddedServer) -> None:
    """A task that is missing from the list was not imported, and so was not checked."""
    locks = Locks.from_url(valkey.url)
    found = check(locks, app_on(valkey.url))
    locks.close()
    sentence = "Tasks examined: 1 locked (bill); 1 without a lock (mail)."
    assert Finding("note", "settings", sentence) in found
