"""A later attempt of a job takes its lock over; nobody else does."""

from typing import Any

import pytest

from celery_locks import Conflict, Holder, LeaseLost, Locks, admin
from celery_locks.store.commands.locks import AcquireExtras, ParkRequest, reservation_token
from celery_locks.store.commands.replies import Ended, Renewal
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.parked_calls import ParkedCalls
from tests.support.waiting import wait_until


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks()


def attempt(number: int, job: str = "job") -> Holder:
    return Holder(task_id=job, retries=number)


def test_later_attempt_takes_the_lock_over(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """A retry is published before the earlier attempt has ended."""
    first = api.acquire("a", holder=attempt(0))
    second = other.acquire("a", holder=attempt(1))
    assert second.fence > first.fence
    assert [h.retries for h in api.holders("a")] == [1]
    with pytest.raises(LeaseLost):
        api.renew(first)
    assert api.release(first) is False
    assert other.is_locked("a")
    assert other.release(second) is True
    assert backend.keys() == {"fence"}


@pytest.mark.parametrize(
    ("held", "asking"),
    [
        (attempt(1), attempt(1)),
        (attempt(1), attempt(0)),
        (attempt(0), attempt(1, job="another")),
        (attempt(0), Holder(retries=1)),
        (Holder(), attempt(1)),
        (Holder(), Holder(retries=1)),
        (attempt(0, job="-"), Holder(retries=1)),
        (attempt(0)._replace(nested=True), attempt(1)),
        (attempt(0), attempt(1)._replace(nested=True)),
        (attempt(0)._replace(nested=True), attempt(1)._replace(nested=True)),
    ],
    ids=[
        "same attempt",
        "earlier",
        "another job",
        "no job",
        "held by no job",
        "neither",
        "dash",
        "held by the job's code",
        "asked for by the job's code",
        "both by the job's code",
    ],
)
def test_nobody_else_takes_it_over(
    api: LocksApi, other: LocksApi, backend: Backend, held: Holder, asking: Holder
) -> None:
    """A redelivered message is the same attempt: it must not run beside itself."""
    assert api.acquire("a", holder=held)
    before = backend.content()
    assert isinstance(other.try_acquire("a", holder=asking), Conflict)
    assert backend.content() == before


def test_later_attempt_takes_its_own_slot_of_a_semaphore(api: LocksApi, other: LocksApi) -> None:
    api.acquire("s", limit=2, holder=attempt(0, "one"))
    api.acquire("s", limit=2, holder=attempt(0, "two"))
    assert other.acquire("s", limit=2, holder=attempt(3, "two"))
    assert {(h.task_id, h.retries) for h in api.holders("s")} == {("one", 0), ("two", 3)}


@pytest.mark.parametrize("job", ["with space", "ünï", "a%20b", "-", "{x}", "n\nl\0"])
def test_task_id_of_any_spelling(api: LocksApi, other: LocksApi, job: str) -> None:
    api.acquire("a", holder=attempt(0, job))
    assert api.holders("a")[0].task_id == job
    assert other.acquire("a", holder=attempt(1, job))


# A retry carries the fences of the run that published it, and takes over from no other run.


def ask(
    locks: Locks, token: str, retries: int, published_by: tuple[int, ...] = (), **options: Any
) -> Any:
    extras = AcquireExtras(published_by=published_by) if published_by else None
    spec = LockSpec("a", options.pop("ttl", 30.0), options.pop("limit", 1))
    return locks.perform(
        locks.commands.acquire(spec, token, attempt(retries), extras=extras, **options)
    )


def lapse(locks: Locks, backend: Backend, token: str) -> None:
    """Let the lease of this token lapse, as that of a process that was killed."""
    locks.perform(locks.commands.renew([Renewal("a", token, 0.01)], 1.0))
    wait_until(lambda: not locks.holders("a"), 10, what="the lease to lapse")


def test_retry_takes_over_from_the_run_that_published_it(locks: Locks, backend: Backend) -> None:
    first = ask(locks, "t1", 0)
    second = ask(locks, "t2", 1, (first,))
    assert second > first
    assert ask(locks, "t2", 1, (first,)) == second, "the reply was lost"
    assert [it.token for it in locks.holders("a")] == ["t2"]
    locks.perform(locks.commands.release("a", "t2"))
    assert backend.keys() == {"fence"}


def test_retry_does_not_take_over_from_a_copy_of_the_attempt_before(
    locks: Locks, backend: Backend
) -> None:
    """The attempt published its retry and died; its message was redelivered and runs."""
    first = ask(locks, "t1", 0)
    lapse(locks, backend, "t1")
    copy = ask(locks, "copy", 0)
    assert copy > first
    before = backend.content()
    conflict = ask(locks, "t2", 1, (first,))
    assert [it.token for it in conflict.holders] == ["copy"]
    assert conflict.has_copy_of("job", attempt(1).attempt)
    assert backend.content() == before
    locks.perform(locks.commands.release("a", "copy"))
    assert ask(locks, "t2", 1, (first,)) > copy


def test_retry_beside_a_copy_gets_no_free_slot_and_does_not_wait(
    locks: Locks, backend: Backend
) -> None:
    """With a limit, and with ``wait``: the copy is the same work."""
    first = ask(locks, "t1", 0, limit=2)
    lapse(locks, backend, "t1")
    ask(locks, "copy", 0, limit=2)
    conflict = ask(locks, "t2", 1, (first,), limit=2, alive=5.0)
    assert isinstance(conflict, Conflict)
    info = locks.info("a")
    assert info
    assert not info.waiters
    assert [it.token for it in info.holders] == ["copy"]


def test_retry_that_was_granted_after_a_copy_yields_to_it(locks: Locks, backend: Backend) -> None:
    """Both waited for two slots that came free together, and the copy was first in the queue."""
    for token in ("x", "y"):
        locks.perform(locks.commands.acquire(LockSpec("a", 30.0, 2), token, Holder()))
    assert isinstance(ask(locks, "copy", 0, limit=2, alive=5.0), Conflict)
    assert isinstance(ask(locks, "t2", 1, (1,), limit=2, alive=5.0), Conflict)
    for token in ("x", "y"):
        locks.perform(locks.commands.release("a", token))
    assert [it.token for it in locks.holders("a")] == ["copy", "t2"]
    conflict = ask(locks, "t2", 1, (1,), limit=2, alive=5.0)
    assert isinstance(conflict, Conflict)
    assert [it.token for it in conflict.holders] == ["copy"]
    assert ask(locks, "copy", 0, limit=2, alive=5.0) > 0
    assert [it.token for it in locks.holders("a")] == ["copy"]


@pytest.mark.parametrize(
    "kept_under", ["", reservation_token("job", again=True)], ids=["at_least", "on_retry=keep"]
)
def test_retry_takes_over_a_slot_under_which_nothing_runs(locks: Locks, kept_under: str) -> None:
    """Whichever run left it: the publisher, or a copy of it that ended."""
    ask(locks, "copy", 0)
    locks.perform(locks.commands.release("a", "copy", keep_for=60.0, next_token=kept_under))
    assert len(locks.holders("a")) == 1
    assert ask(locks, "t2", 1, (1,)) > 1
    assert [it.token for it in locks.holders("a")] == ["t2"]


@pytest.mark.parametrize("parked", [False, True])
def test_retry_takes_over_the_reservation_of_its_message(locks: Locks, parked: bool) -> None:
    """It has attempt 0: a message in the queue, or a parked one that was woken."""
    token = reservation_token("job", parked=parked)
    locks.perform(locks.commands.acquire(LockSpec("a", 60.0), token, attempt(-1)))
    assert ask(locks, "t2", 1, (1,)) > 1
    assert [it.token for it in locks.holders("a")] == ["t2"]


def test_retry_that_may_park_is_not_parked_behind_a_copy(locks: Locks, backend: Backend) -> None:
    """A parked message is woken for the slot of the copy; it comes back by itself instead."""
    first = ask(locks, "t1", 0)
    lapse(locks, backend, "t1")
    ask(locks, "copy", 0)
    park = ParkRequest(attempt(-1), 2, 60.0, "message", 10)
    extras = AcquireExtras(published_by=(first,), park=park)
    answer = locks.perform(locks.commands.acquire(LockSpec("a"), "t2", attempt(1), extras=extras))
    assert isinstance(answer, Conflict)
    info = locks.info("a")
    assert info
    assert not info.waiting


def test_late_release_does_not_lower_the_mark_of_a_later_attempt(backend: Backend) -> None:
    """A retry may run and end before the attempt that published it has released the lock."""
    calls = ParkedCalls(backend.locks())
    calls.start("job")
    assert isinstance(calls.start("job", attempt=2, token="second"), int)
    calls.end("job", attempt=2, token="second")
    calls.end("job")
    assert isinstance(calls.start("job", attempt=2, token="copy"), Ended)


def test_earlier_attempt_does_not_replace_a_woken_retry(backend: Backend) -> None:
    """Both are parked under one token, and the woken one may not be published yet."""
    calls = ParkedCalls(backend.locks())
    calls.start("first")
    calls.park("job", attempt=2)
    calls.end("first")
    admin.force_release(calls.locks, "a")
    calls.start("other")
    calls.park("job", attempt=1)
    assert calls.poll().messages == []
    calls.end("other")
    assert calls.take("job").message == "message 2 of job"
