"""``self.locks.hold`` where there is no message, no run, or nothing that a policy could do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockConflict, LockDeadlock, LockedTask, Locks, is_skipped
from celery_locks.errors import LockUsageError
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.not_acquired import NotAcquired
from celery_locks.store.commands.locks import reservation_token
from celery_locks.testing import hold_lock, in_memory_locks
from tests.support.keys import key_alone
from tests.support.waiting import wait_until


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("inside", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Iterator[Locks]:
    with in_memory_locks(app) as locks:
        yield locks


def task_of(app: Celery, body: Any, **options: Any) -> Any:
    locked = {"base": LockedTask, "bind": True, "lock_key": key_alone, "shared": False}
    return app.task(name=body.__name__, **locked, **options)(body)


def enter(self: Any, key: str, inner: str, **options: Any) -> str:
    try:
        with self.locks.hold(inner, **options):
            return "inside"
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("on_conflict", ["raise", "requeue"])
def test_eager_call_has_no_message_to_requeue(app: Celery, locks: Locks, on_conflict: str) -> None:
    task = task_of(app, enter)
    assert task.apply(("k", "inner"), {"on_conflict": on_conflict}).get() == "inside"
    with hold_lock("inner", app=app):
        call = task.apply(("k", "inner"), {"on_conflict": on_conflict})
    assert call.get() == "LockConflict"


def test_skip_ends_the_run_past_the_bodys_own_handlers(app: Celery, locks: Locks) -> None:
    task = task_of(app, enter)
    with hold_lock("inner", app=app):
        assert is_skipped(task.apply(("k", "inner"), {"on_conflict": "skip"}).get())
        assert is_skipped(task("k", "inner", on_conflict="skip")), "a direct call"
        assert not locks.is_locked("k")


def test_lock_that_the_run_itself_holds_is_an_error(app: Celery, locks: Locks) -> None:
    """The run would find it busy each time that it comes back."""

    def twice(self: Any, key: str) -> None:
        with self.locks.hold("other"), self.locks.hold("other", on_conflict="skip"):
            pass

    with pytest.raises(LockConflict, match="caller"):
        task_of(app, twice).apply(("k",)).get()
    task = task_of(app, enter)
    assert task.apply(("k", "k"), {"on_conflict": "skip"}).get() == LockConflict.__name__
    waits = {"on_conflict": "skip", "wait": 5}
    assert task.apply(("k", "k"), waits).get() == LockDeadlock.__name__


def test_skip_in_a_task_that_is_called_directly_ends_that_call_only(
    app: Celery, locks: Locks
) -> None:
    inner_task = task_of(app, enter)

    def outer(self: Any, key: str) -> Any:
        return [is_skipped(inner_task("k2", "inner", on_conflict="skip")), self.lock.name]

    with hold_lock("inner", app=app):
        assert task_of(app, outer).apply(("k1",)).get() == [True, "k1"]


def test_call_covered_by_the_lock_of_the_outer_run_ends_the_outer_run(
    app: Celery, locks: Locks
) -> None:
    """The two are one run: they have one lock and one message."""

    def calls_itself(self: Any, key: str, deep: bool = False) -> Any:
        if not deep:
            return ["went on", self(key, deep=True)]
        return enter(self, key, "inner", on_conflict="skip")

    with hold_lock("inner", app=app):
        assert is_skipped(task_of(app, calls_itself).apply(("k1",)).get())
        assert not locks.is_locked("k1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_conflict": "wait"}, "on_conflict of hold is 'wait'; write 'raise' or 'requeue'"),
        ({"on_conflict": "skip", "required": False}, "no effect with required=False"),
        ({"on_conflict": "requeue"}, "ends the run of a locked task, and none runs here"),
    ],
)
def test_policy_that_cannot_work_is_refused_where_it_is_written(
    app: Celery, locks: Locks, options: Any, sentence: str
) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        locks_of(app).hold("inner", **options)


def test_reservation_of_a_message_that_cannot_be_requeued_is_released(
    app: Celery, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``queued+running`` the lock becomes a reservation before the message is sent."""
    held: list[Any] = []

    def fail(*_: Any) -> None:
        held.extend(locks.holders("k"))
        raise OSError("as planned")

    situation = NotAcquired._situation
    monkeypatch.setattr(NotAcquired, "_publish", fail)
    monkeypatch.setattr(
        NotAcquired, "_situation", lambda self: replace(situation(self), can_requeue=True)
    )
    task = task_of(app, enter, lock_scope="queued+running")
    with hold_lock("inner", app=app):
        call = task.apply(("k", "inner"), {"on_conflict": "requeue"}, task_id="id-1")
        assert isinstance(call.result, OSError)
    assert [holder.token for holder in held] == [reservation_token("id-1", requeued=True)]
    wait_until(lambda: not locks.holders("k"), 10, what="the reservation to be released")
