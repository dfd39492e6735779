"""What users' tests rely on: locks in memory that lock, eager tasks that behave as on a worker."""

import builtins
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult, EagerResult

from celery_locks import (
    LockConflict,
    LockedTask,
    Locks,
    LockUsageError,
    current_lease,
    single_instance,
)
from celery_locks.clock import now
from celery_locks.core.lease import Lease, State
from celery_locks.testing import (
    assert_skipped,
    hold_lock,
    in_memory_locks,
    lock_name_of,
    locks_disabled,
)
from celery_locks.types import LockSpec


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """No Redis in it anywhere; eager, as users' tests are."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    # Else each app here would get the tasks of all the others when it is finalised.
    monkeypatch.setattr(app, "task", functools.partial(app.task, shared=False))
    yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Iterator[Locks]:
    with in_memory_locks(app) as locks:
        yield locks


def task(app: Celery, **options: Any) -> Any:
    """Says which lock it ran under."""

    @app.task(base=LockedTask, bind=True, name="bill", lock_key="invoice:{number}", **options)
    def bill(self: Any, number: int, fail: int = 0) -> str:
        if self.request.retries < fail:
            raise self.retry(countdown=60)
        return str(self.lock.name)

    return bill


def test_in_memory_locks_lock_and_free(app: Celery, locks: Locks) -> None:
    """A store that only pretends would let the user's own conflict tests pass for nothing."""
    assert task(app).delay(1).get() == "invoice:1"
    assert not locks.is_locked("invoice:1")
    with hold_lock("invoice:1", app=app):
        assert locks.is_locked("invoice:1")


def test_in_memory_locks_start_empty_and_put_back_what_was(app: Celery) -> None:
    """One test's locks must not be another's."""
    bill = task(app)
    with in_memory_locks(app) as outer:
        lease = outer.acquire("invoice:1")
        with in_memory_locks(app) as inner:
            assert not inner.is_locked("invoice:1")
        assert_skipped(bill.delay(1))
        assert lease
        lease.release()
    with pytest.raises(LockUsageError, match="no Redis to keep the locks in"):
        bill.apply((1,), throw=True)


def test_in_memory_locks_keep_the_apps_settings(app: Celery) -> None:
    """What the app says of its locks holds in its tests too."""
    app.conf.locks_on_conflict = "raise"
    with in_memory_locks(app), hold_lock("invoice:1", app=app):
        assert isinstance(task(app).delay(1).result, LockConflict)


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_in_memory_locks_say_what_to_install(
    app: Celery, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fakeredis without Lua would fail at the first script, far from the reason."""
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LockUsageError, match=rf"{missing}.*pip install 'celery-locks\[testing\]'"):
        with in_memory_locks(app):
            pass


def test_eager_skip_is_a_result(app: Celery, locks: Locks) -> None:
    """The default, as on a worker: state SUCCESS and a value that says so."""
    with hold_lock("invoice:1", app=app):
        result = task(app).delay(1)
    skip = assert_skipped(result, lock="invoice:1")
    assert result.state == "SUCCESS"
    assert skip["holder"]["task"] == "somebody.else"


@pytest.mark.parametrize("policy", ["raise", "requeue"])
def test_eager_conflict_fails_where_it_cannot_be_put_back(
    app: Celery, locks: Locks, policy: str
) -> None:
    """There is no message to put back, and a job silently dropped would be worse."""
    with hold_lock("invoice:1", app=app):
        result = task(app, lock_on_conflict=policy).delay(1)
    assert result.state == "FAILURE"
    assert isinstance(result.result, LockConflict)
    assert result.result.name == "invoice:1"


def test_eager_wait_ends_with_its_patience(app: Celery, locks: Locks) -> None:
    with hold_lock("invoice:1", app=app):
        result = task(app, lock_on_conflict="wait", lock_wait=0.1).delay(1)
    assert isinstance(result.result, LockConflict)


def test_eager_wait_gets_the_lock_when_it_is_freed(app: Celery, locks: Locks) -> None:
    waiting = task(app, lock_on_conflict="wait", lock_wait=10)
    with hold_lock("invoice:1", app=app) as lease:
        threading.Timer(0.1, lease.release).start()
        assert waiting.delay(1).get() == "invoice:1"


@pytest.mark.parametrize("on_retry", ["release", "keep"])
def test_eager_retry_is_no_conflict_with_itself(app: Celery, locks: Locks, on_retry: str) -> None:
    result = task(app, lock_on_retry=on_retry).delay(1, fail=2)
    assert result.get() == "invoice:1"
    assert not locks.is_locked("invoice:1")


def test_eager_keep_holds_the_lock_between_attempts(app: Celery, locks: Locks) -> None:
    """Between two attempts, here in ``on_retry``, nobody else may come in."""
    held: list[bool] = []

    class Watching(LockedTask):
        def on_retry(self, *_: Any) -> None:
            held.append(locks.is_locked("invoice:1"))

    @app.task(base=Watching, bind=True, lock_key="invoice:{n}", lock_on_retry="keep")
    def bill(self: Any, n: int) -> None:
        if self.request.retries == 0:
            raise self.retry(countdown=60)

    bill.delay(1)
    assert held == [True]
    assert not locks.is_locked("invoice:1")


def test_eager_skip_with_a_callback_raises(app: Celery, locks: Locks) -> None:
    """As on a worker: the callback must not be run on a value that says "skipped"."""
    bill = task(app)
    with hold_lock("invoice:1", app=app):
        result = bill.apply((1,), link=bill.si(2))
    assert isinstance(result.result, LockConflict)


def test_task_that_calls_itself_runs_under_the_lock_it_has(app: Celery, locks: Locks) -> None:
    """Recursion is one run, not a second one; it was taken for a redelivered copy."""

    @app.task(base=LockedTask, bind=True)
    def by_id(self: Any, n: int) -> list[str]:
        return [self.lock.name, *(self(n - 1) if n else [])]

    names = by_id.delay(2).get()
    assert len(names) == 3
    assert len(set(names)) == 1


def test_task_that_calls_itself_for_another_key_takes_that_lock(app: Celery, locks: Locks) -> None:
    @app.task(base=LockedTask, bind=True, lock_key="invoice:{n}")
    def bill(self: Any, n: int) -> list[str]:
        return [self.lock.name, *(self(n - 1) if n else [])]

    assert bill.delay(1).get() == ["invoice:1", "invoice:0"]
    with hold_lock("invoice:0", app=app):
        assert bill.delay(1).get() == ["invoice:1", "skipped", "lock", "holder"]
    assert not locks.is_locked("invoice:1")


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("base", [None, LockedTask])
@pytest.mark.parametrize("above", [False, True])
def test_single_instance_sets_the_key_in_every_placement(
    app: Celery, locks: Locks, bind: bool, base: Any, above: bool
) -> None:
    """Below ``base=LockedTask`` and unbound, its key was not seen: locked by task id instead."""

    def bound(self: Any, n: int) -> str:
        return self.lock.name if self else ""

    def unbound(n: int) -> str:
        lease = current_lease()
        return lease.name if lease else ""

    make, mark = app.task(base=base, bind=bind), single_instance(key="invoice:{n}")
    function = bound if bind else unbound
    made: Any = mark(make(function)) if above else make(mark(function))
    assert made.delay(1).get() == "invoice:1"


def test_locks_disabled_runs_everything_without_a_server(app: Celery) -> None:
    """No setting names a Redis here: nothing may ask for one."""

    @app.task()
    @single_instance
    def plain(n: int) -> int:
        return n

    bill = task(app)
    with locks_disabled():
        assert bill.delay(1).get() == ""
        assert bill(1) == ""
        assert plain.delay(1).get() == 1


def test_locks_disabled_has_nothing_pending(app: Celery) -> None:
    """Neither from outside nor from a task, which has an id that a name could be made of."""

    @app.task(base=LockedTask)
    @single_instance(key="report:{day}", scope="queued+running")
    def report(day: str) -> Any:
        return report.pending(day)

    with locks_disabled():
        assert report.pending("monday") is None
        assert report.delay("monday").get() is None


def test_lock_of_an_unlocked_task_has_what_a_lease_has(app: Celery) -> None:
    """Code that works under a lock must work without one: in tests, and with the server away."""
    inner = {"backend", "entries", "lose", "loss", "emit", "suspend", "change_ttl", "mark_renewed"}
    inner |= {
        "request_stop",
        "begin_release",
        "release_arguments",
        "check_renewable",
        "has_ended",
        "is_foreign",
        "woke_parked",
        "holder",
    }
    lease = Lease(LockSpec("a"), "token", 1, now())
    of_a_lease = {word for word in dir(lease) if not word.startswith("_")} - inner

    @app.task(base=LockedTask, bind=True)
    def work(self: Any) -> Any:
        lock = self.lock
        assert {word for word in of_a_lease if not hasattr(lock, word)} == set()
        for word in of_a_lease:
            is_of_lease, is_of_lock = callable(getattr(lease, word)), callable(getattr(lock, word))
            assert is_of_lease == is_of_lock, word
        lock.check()
        lock.renew()
        lock.renew(60)
        assert (lock.token, lock.fence, lock.stop_requested) == ("", 0, False)
        assert lock.state is State.HELD
        assert lock.remaining > 3600
        assert time.time() - lock.acquired_at < 60
        assert lock.release() is True
        return "ran"

    with locks_disabled():
        assert work.delay().get() == "ran"


def test_locks_disabled_ends_with_its_block(app: Celery, locks: Locks) -> None:
    bill = task(app)
    with hold_lock("invoice:1", app=app):
        with locks_disabled(), locks_disabled():
            assert bill.delay(1).get() == ""
        assert_skipped(bill.delay(1))


def test_disabled_task_needs_no_name(app: Celery, locks: Locks) -> None:
    """``lock_enabled=False`` must not fail over an argument that only a name would need."""

    @app.task(base=LockedTask, lock_key=lambda thing: thing.missing, lock_enabled=False)
    def bill(thing: object) -> str:
        return "ran"

    assert bill.apply((object(),)).get() == "ran"


def test_hold_lock_takes_all_slots_or_some(app: Celery, locks: Locks) -> None:
    limited = task(app, lock_limit=3)
    with hold_lock("invoice:1", app=app, limit=3):
        assert_skipped(limited.delay(1))
    with hold_lock("invoice:1", app=app, limit=3, slots=2):
        assert limited.delay(1).get() == "invoice:1"
    with hold_lock("invoice:1", app=app):
        assert limited.delay(1).get() == "invoice:1"


@pytest.mark.parametrize("slots", [0, -1, 3, 1.5, True])
def test_hold_lock_refuses_slots_that_there_are_not(app: Celery, locks: Locks, slots: Any) -> None:
    with pytest.raises(LockUsageError, match="whole number from 1 to the limit, 2"):
        with hold_lock("invoice:1", app=app, limit=2, slots=slots):
            pass
    assert not locks.is_locked("invoice:1")


def test_hold_lock_refuses_a_limit_of_none(app: Celery, locks: Locks) -> None:
    with pytest.raises(LockUsageError, match="limit of lock 'invoice:1' is 0"):
        with hold_lock("invoice:1", app=app, limit=0):
            pass


def test_hold_lock_conflicts_with_a_holder(app: Celery, locks: Locks) -> None:
    with hold_lock("invoice:1", app=app), pytest.raises(LockConflict):
        with hold_lock("invoice:1", app=app):
            pass


def test_lock_name_of_is_what_the_task_takes(app: Celery, locks: Locks) -> None:
    """Names made of all arguments cannot be guessed."""

    @app.task(bind=True)
    @single_instance
    def report(self: Any, day: str, full: bool = False) -> Any:
        return self.lock.name

    app.finalize()
    name = report.delay("monday").get()
    assert lock_name_of(report, day="monday", full=False) == name
    with locks_disabled():
        assert lock_name_of(report, "monday") == name
    with pytest.raises(LockUsageError, match="by its id"):
        lock_name_of(app.task(base=LockedTask)(task))


def test_assert_skipped_takes_plain_values() -> None:
    skip = {"skipped": True, "lock": "a", "holder": None}
    assert assert_skipped(skip) is skip


class Delivered(AsyncResult):  # type: ignore[type-arg,unused-ignore]
    """A worker's result, without the worker."""

    def __init__(self, value: Any) -> None:
        super().__init__("id", app=Celery(set_as_current=False, backend="cache+memory://"))
        self.value = value

    def get(self, *_: Any, **options: Any) -> Any:
        assert options["propagate"] is False
        return self.value


def test_assert_skipped_takes_a_workers_result() -> None:
    skip = {"skipped": True, "lock": "a", "holder": None}
    assert assert_skipped(Delivered(skip), lock="a") is skip


def test_assert_skipped_waits_no_longer_than_its_patience() -> None:
    app = Celery(set_as_current=False, backend="cache+memory://")
    with pytest.raises(AssertionError, match=r"within 0.05 s; the task's state is PENDING"):
        assert_skipped(app.AsyncResult("nobody"), patience=0.05)


@pytest.mark.parametrize(
    ("value", "state", "sentence"),
    [
        (42, "SUCCESS", "the task was not skipped: it ran and returned 42"),
        ({"skipped": 1}, "SUCCESS", "it ran and returned"),
        (ValueError("no"), "FAILURE", "it failed with ValueError('no')"),
    ],
)
def test_assert_skipped_says_what_happened_instead(value: Any, state: str, sentence: str) -> None:
    for result in (EagerResult("id", value, state), value, Delivered(value)):
        with pytest.raises(AssertionError) as failure:
            assert_skipped(result)
        assert sentence in str(failure.value)


def test_assert_skipped_explains_a_conflict(app: Celery, locks: Locks) -> None:
    with hold_lock("invoice:1", app=app):
        result = task(app, lock_on_conflict="raise").delay(1)
    with pytest.raises(AssertionError, match="LockConflict, lock 'invoice:1' is held by"):
        assert_skipped(result)


def test_assert_skipped_compares_the_lock() -> None:
    with pytest.raises(AssertionError, match="for lock 'a', not for 'b'"):
        assert_skipped({"skipped": True, "lock": "a", "holder": None}, lock="b")
