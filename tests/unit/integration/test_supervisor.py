"""The main process supervises many tasks: one that it cannot read costs the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import Holder, LockedTask
from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.integration import supervisor as module
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.headers import HEADER
from celery_locks.integration.revoked import RevokedTasks
from celery_locks.integration.supervised_task import SupervisedTask
from celery_locks.integration.supervisor import ChildSupervisor
from celery_locks.store.commands.locks import reservation_token
from celery_locks.testing import in_memory_locks
from celery_locks.types import LockSpec
from tests.support.waiting import wait_until


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("supervisor", broker="memory://", set_as_current=False)

    @app.task(name="job", base=LockedTask, lock_key="job:{key}", shared=False)
    def job(key: str) -> None: ...

    app.finalize()
    with in_memory_locks(app):
        yield app
    app.close()


class Request(SimpleNamespace):
    """What the supervisor uses of a worker's request."""

    worker_pid = None

    def __init__(self, task: Any, name: str, header: Any = None) -> None:
        super().__init__(task=task, id=name, lock_token=name, request_dict={HEADER: header})


def add(supervisor: ChildSupervisor, request: Request) -> SupervisedTask:
    entry = supervisor._supervised[request.lock_token] = SupervisedTask(request, in_child=True)
    entry.due = now()
    return entry


class BlockedMessage:
    """A message on a broker that does not answer."""

    def __init__(self) -> None:
        self.due = now()
        self.began, self.ends = threading.Event(), threading.Event()

    def keep_invisible(self) -> None:
        self.began.set()
        self.ends.wait(60)
        self.due = float("inf")


def test_a_frozen_broker_does_not_delay_the_supervision(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a child that is not found is not renewed, and lapses while its task runs."""
    supervisor, message = ChildSupervisor(), BlockedMessage()
    monkeypatch.setattr(module.UnackedMessage, "of", lambda request: message)
    task = app.tasks["job"]
    monkeypatch.setattr(task, "acks_late", True)
    try:
        supervisor.add(Request(task, "first"), in_child=True)
        assert message.began.wait(30)
        monkeypatch.setattr(module.UnackedMessage, "of", lambda request: None)
        supervisor.add(Request(task, "second"), in_child=True)
        entry = supervisor._supervised["second"]
        wait_until(lambda: entry.ttl > 0, what="the supervisor to look at the second task")
    finally:
        message.ends.set()
        supervisor.after_fork()


@pytest.mark.parametrize("header", [[["x", 1]], "text", {"options": 7}, {"version": 9}], ids=str)
def test_a_wrong_header_ends_its_own_supervision_only(app: Celery, header: Any) -> None:
    supervisor = ChildSupervisor()
    add(supervisor, Request(app.tasks["job"], "bad", header))
    good = add(supervisor, Request(app.tasks["job"], "good"))
    supervisor.run()
    assert supervisor.tokens == {"good"}
    assert good.ttl > 0


def test_an_unforeseen_error_costs_its_own_task_only(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, not at once, and logged once."""
    monkeypatch.setattr(module.renewer, "reports", type(renewer.reports)())
    supervisor, seen = ChildSupervisor(), []

    def fails(_: Any) -> Any:
        seen.append(now())
        raise KeyError("a bug of ours")

    task = SimpleNamespace(lock_options=fails, app=app)
    bad = add(supervisor, Request(task, "bad"))
    good = add(supervisor, Request(app.tasks["job"], "good"))
    for _ in range(3):
        supervisor.run()
    assert good.ttl > 0
    assert len(seen) == 1
    assert bad.due > now()
    bad.died_at, bad.due = now() - 120, now()
    supervisor.run()
    assert supervisor.tokens == {"good"}, "of a process that is long dead nothing is left to do"
    assert len(caplog.records) == 1, caplog.text


def test_a_token_that_cannot_be_looked_up_costs_its_own_task_only(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked for in one call, and what the store has of one may be unreadable."""
    locks, supervisor = locks_of(app), ChildSupervisor()
    held = [add(supervisor, Request(app.tasks["job"], name)) for name in ("bad", "good")]
    for entry in held:
        holder = Holder(task_id=entry.token, task="job")
        locks.perform(locks.commands.acquire(LockSpec(entry.token), entry.token, holder))
        entry.locks, entry.ttl = locks, 30.0
    fail_on(monkeypatch, locks, "bad")
    supervisor.run()
    assert [entry.name for entry in held] == [None, "good"]
    renewer.discard("good")


def test_a_revoked_id_that_fails_costs_the_others_nothing(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of a revoke are anybody's: some can be no task's id, and some cannot be looked up."""
    locks, revoked = locks_of(app), RevokedTasks()
    for name in ("bad", "good"):
        holder = Holder(task_id=name, task="job", retries=-1)
        locks.perform(locks.commands.acquire(LockSpec(name, 600), reservation_token(name), holder))
    fail_on(monkeypatch, locks, reservation_token("bad"))
    revoked.add([None, 7, "\ud800", "bad", "good"], app)  # type: ignore[list-item]
    wait_until(lambda: not locks.holders("good"), what="the reservation to be released")
    wait_until(lambda: not revoked._waiting, what="the rest to be given up")


def fail_on(monkeypatch: pytest.MonkeyPatch, locks: AppLocks, token: str) -> None:
    store: Any = type(locks.operations.background_store)
    perform = store.perform

    def failing(self: Any, call: Any) -> Any:
        if call.script.name == "locate" and token in call.args:
            raise ValueError("unreadable")
        return perform(self, call)

    monkeypatch.setattr(store, "perform", failing)
