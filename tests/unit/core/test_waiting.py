"""Waiting for a busy lock: each step answers as a test says, and time passes when it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_locks import LockDeadlock, LockUnavailable, events
from celery_locks.core.lease import Lease, trusted_until
from celery_locks.core.operations import Operations
from celery_locks.core.owners import current_owner
from celery_locks.core.requests import AcquireRequest
from celery_locks.core.waiting import ALIVE, REPOLL
from celery_locks.store.commands.locks import CLAIM, reservation_token
from celery_locks.store.commands.replies import Completed, Wait
from celery_locks.store.effects import Subscribe, WaitForHandover
from celery_locks.types import Conflict, Holder, LockSpec
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

TTL, PATIENCE = 9.0, 5.0
CHANNEL = "p:{0}:c"
THEIRS = Holder(token="theirs", owner="you")
PLAIN = Holder(pid=7)


def busy(*holders: Holder, lapses_in: float = 9.0, ticket: int = 10) -> Conflict:
    return Conflict("a", holders or (THEIRS,), lapses_in, 1, ticket=ticket)


Acquire = Callable[..., Any]


@pytest.fixture
def acquire(
    operations: Operations[Lease], scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> Acquire:
    """``acquire(step, …)`` waits for lock "a" while the store answers by these steps."""

    def run(*script: Any, holder: Holder = PLAIN, **fields: Any) -> Any:
        scripted_store.expect(*script)
        spec = LockSpec("a", TTL, wait=PATIENCE)
        request: AcquireRequest[Lease] = AcquireRequest(
            spec, holder, "mine", virtual_clock(), **fields
        )
        return scripted_store.run(operations.acquire(request))

    return run


@pytest.fixture
def slept(virtual_clock: VirtualClock) -> Callable[[float], Callable[[Any], Any]]:
    """``slept(seconds, reply)``: the reply comes after so many seconds."""

    def after(seconds: float, reply: Any = 0) -> Callable[[Any], Any]:
        def answer(_: Any) -> Any:
            virtual_clock.advance(seconds)
            return reply

        return answer

    return after


# The first call does not join the queue, because the channel of this process is not known yet.
JOIN = [("subscribe", None), ("acquire", busy()), ("subscribe", CHANNEL)]


def test_free_lock_is_acquired_by_the_first_call(
    acquire: Acquire, scripted_store: ScriptedStore
) -> None:
    """Most locks are free: no subscription is opened for them."""
    assert acquire(("subscribe", None), ("acquire", 7)).fence == 7
    assert scripted_store.performed[0].connect is False
    assert scripted_store.unsubscribed == ["mine"]


def test_waiter_joins_the_queue_once_it_can_be_woken(
    acquire: Acquire, scripted_store: ScriptedStore
) -> None:
    assert acquire(*JOIN, ("acquire", 7)).fence == 7
    first, second = scripted_store.acquires
    assert first.alive == 0, "without a channel it does not queue"
    assert second.alive == pytest.approx(ALIVE)
    assert CHANNEL in second.record


def test_waiter_that_cannot_subscribe_joins_the_queue_and_polls(
    acquire: Acquire, scripted_store: ScriptedStore, slept: Any
) -> None:
    script = [("subscribe", None), ("acquire", busy()), ("subscribe", "-"), ("acquire", busy())]
    assert acquire(*script, ("wait", slept(REPOLL)), ("subscribe", "-"), ("acquire", 7)).fence == 7


@pytest.mark.parametrize(
    ("lapses_in", "already_waited", "seconds"),
    [(9.0, 0.0, REPOLL), (0.1, 0.0, 0.105), (9.0, PATIENCE - 0.3, 0.3)],
    ids=["asks again", "the lock lapses", "patience ends"],
)
def test_waiter_sleeps_until_the_first_moment_that_may_change_something(
    acquire: Acquire,
    scripted_store: ScriptedStore,
    slept: Any,
    lapses_in: float,
    already_waited: float,
    seconds: float,
) -> None:
    answer = slept(already_waited, busy(lapses_in=lapses_in))
    acquire(*JOIN, ("acquire", answer), ("wait", 0), ("subscribe", CHANNEL), ("acquire", 7))
    [wait] = [it for it in scripted_store.performed if isinstance(it, WaitForHandover)]
    assert wait.seconds == pytest.approx(seconds)


def test_patience_that_is_over_leaves_the_queue_and_returns_the_conflict(
    acquire: Acquire, scripted_store: ScriptedStore, still_renewer: StillRenewer, slept: Any
) -> None:
    """It may have been handed the lock in this very moment: the release covers that too."""
    left = slept(PATIENCE, busy())
    assert acquire(*JOIN, ("acquire", left), ("release", True)) == busy()
    assert scripted_store.releases[0][:2] == ("a", "mine")
    assert not still_renewer.pending
    assert scripted_store.unsubscribed == ["mine"]


def test_patience_that_is_over_before_the_queue_releases_nothing(
    acquire: Acquire, scripted_store: ScriptedStore, slept: Any
) -> None:
    assert acquire(("subscribe", None), ("acquire", slept(PATIENCE, busy()))) == busy()


def test_hand_over_is_a_lease_for_the_claim_and_renewed_at_once(
    acquire: Acquire, still_renewer: StillRenewer, virtual_clock: VirtualClock, slept: Any
) -> None:
    """No call confirms it: the renewal does, while it keeps it."""
    asked_at = virtual_clock()
    lease = acquire(*JOIN, ("acquire", busy(ticket=10)), ("wait", slept(0.1, 11)))
    assert lease.fence == 11
    assert lease.deadline == pytest.approx(trusted_until(asked_at, CLAIM))
    assert still_renewer.first_due == virtual_clock()


@pytest.mark.parametrize(
    ("fence", "holder", "seconds"),
    [
        (11, Holder(task_id="j", task="bill"), 0.0),
        (10, PLAIN, 0.0),
        (11, PLAIN, CLAIM / 4),
        (11, PLAIN, 60.0),
    ],
    ids=["a task", "a fence from before the queue", "after a longer wait", "after a sleep"],
)
def test_hand_over_that_may_be_over_or_not_ours_is_confirmed(
    acquire: Acquire, slept: Any, fence: int, holder: Holder, seconds: float
) -> None:
    """The claim window is short: what is used without a call must be certain."""
    confirmed = acquire(
        *JOIN,
        ("acquire", busy(ticket=10)),
        ("wait", slept(seconds, fence)),
        ("acquire", 12),
        holder=holder,
    )
    assert confirmed.fence == 12


def test_confirmation_that_finds_the_lock_taken_waits_on(acquire: Acquire) -> None:
    """The claim lapsed, and the lock went to the next in line."""
    task = Holder(task_id="j", task="bill")
    script = [("acquire", busy()), ("wait", 11), ("acquire", busy(ticket=12)), ("wait", 13)]
    assert acquire(*JOIN, *script, ("acquire", 14), holder=task).fence == 14


@pytest.mark.parametrize(
    "holder",
    [
        Holder(token="x", task_id="j"),
        Holder(token="x", task_id="j", retries=3),
        Holder(token=reservation_token("other"), task_id="other", retries=-1),
    ],
    ids=["a copy", "a later attempt", "a queued message"],
)
def test_task_does_not_wait_where_waiting_cannot_help(
    acquire: Acquire, scripted_store: ScriptedStore, holder: Holder
) -> None:
    mine = Holder(task_id="j", task="bill")
    assert acquire(("subscribe", None), ("acquire", busy(holder)), holder=mine) == busy(holder)


@pytest.mark.parametrize(("since", "waits"), [(1.0, True), (4.0, False)])
def test_task_waits_for_a_moment_behind_a_message_that_was_woken(
    acquire: Acquire, since: float, waits: bool
) -> None:
    """Both are in one queue; but the message may need the worker slot that the wait takes."""
    woken = Holder(token="kjob", task_id="job", retries=-1, fence=3, acquired_at=100.0)
    behind = replace(busy(woken), as_of=100.0 + since)
    script = [("subscribe", None), ("acquire", behind)]
    if waits:
        script += [("subscribe", CHANNEL), ("acquire", 12)]
    answer = acquire(*script, holder=Holder(task_id="mine", task="bill"))
    assert isinstance(answer, Lease) is waits


def test_completed_work_ends_the_wait_and_leaves_the_queue(acquire: Acquire) -> None:
    done = Completed("rt 1")
    assert acquire(*JOIN, ("acquire", done), ("release", False)) == done


@pytest.mark.parametrize("error", [reply_lost(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("step", ["acquire", "wait", "subscribe"])
def test_interrupted_wait_leaves_the_queue_later(
    acquire: Acquire,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    step: str,
    error: BaseException,
) -> None:
    """Its place in the queue, or the lock that it was handed, would block those behind it."""
    steps = [("acquire", busy()), ("wait", 0), ("subscribe", CHANNEL)]
    broken = next(number for number, (name, _) in enumerate(steps) if name == step)
    with pytest.raises(type(error)):
        acquire(*JOIN, *steps[:broken], (step, error))
    assert still_renewer.pending["mine"].repeat_until_expired
    assert scripted_store.unsubscribed == ["mine"]
    scripted_store.expect(("release", True))
    still_renewer.run_due()


@pytest.fixture
def held(virtual_clock: VirtualClock) -> Iterator[Lease]:
    """This thread holds lock "b" while it waits for "a"."""
    owner = current_owner()
    lease = Lease(LockSpec("b", TTL), "held", 1, virtual_clock())
    owner.leases = {"held": lease}
    yield lease
    owner.leases = {}


def deadlock(ticket: int = 10) -> list[Wait]:
    """I wait for "a", which you hold; you wait for "b", which I hold."""
    me = current_owner().id
    return [
        Wait(me, "a", "mine", ticket, True, (THEIRS,)),
        Wait("you", "b", "yours", 9, True, (Holder(token="held", owner=me),)),
    ]


def both(waits: list[Wait]) -> list[Any]:
    """The two replies of one reading: first the wait of the caller, then those of the holders."""
    return [("waits", waits[:1]), ("waits", waits[1:])]


@pytest.mark.usefixtures("held")
def test_deadlock_that_is_read_twice_leaves_the_queue_and_raises(
    acquire: Acquire,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    emitted: list[events.LockEvent],
) -> None:
    found = deadlock()
    script = [*JOIN, ("acquire", busy()), *both(found), *both(found), ("release", True)]
    with pytest.raises(LockDeadlock) as caught:
        acquire(*script)
    assert [step.name for step in caught.value.cycle] == ["a", "b"]
    assert not still_renewer.pending, "it has left the queue already"
    assert [event.kind for event in emitted] == ["deadlock"]
    assert scripted_store.unsubscribed == ["mine"]


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("reply", [reply_lost(), TimeoutError()], ids=repr)
def test_deadlock_whose_release_has_no_reply_is_released_later(
    acquire: Acquire, still_renewer: StillRenewer, reply: Exception
) -> None:
    found = deadlock()
    script = [*JOIN, ("acquire", busy()), *both(found), *both(found), ("release", reply)]
    with pytest.raises(type(reply)):
        acquire(*script)
    assert set(still_renewer.pending) == {"mine"}


@pytest.mark.usefixtures("held")
def test_reading_that_differs_from_the_first_is_no_deadlock(acquire: Acquire) -> None:
    """Shards are read one after the other: what is not there twice may never have been."""
    first, second = deadlock(), deadlock()
    second[1] = second[1]._replace(token="another wait of yours")
    script = [*JOIN, ("acquire", busy()), *both(first), *both(second)]
    assert acquire(*script, ("wait", 11)).fence == 11


@pytest.mark.usefixtures("held")
def test_wait_that_began_before_the_other_goes_on(acquire: Acquire) -> None:
    """One of them raises, not both."""
    earlier = deadlock(ticket=8)
    assert acquire(*JOIN, ("acquire", busy()), *both(earlier), ("wait", 11)).fence == 11


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_reading_that_fails_is_no_deadlock(acquire: Acquire, at: int) -> None:
    """A shard that is away must not end a wait on another one."""
    found = deadlock()
    reads: list[Any] = [*both(found), *both(found)]
    script = [*JOIN, ("acquire", busy()), *reads[:at], ("waits", LockUnavailable("away"))]
    assert acquire(*script, ("wait", 11)).fence == 11


def test_caller_that_holds_nothing_does_not_look_for_deadlocks(
    acquire: Acquire, scripted_store: ScriptedStore
) -> None:
    acquire(*JOIN, ("acquire", busy()), ("wait", 11))
    assert "waits" not in scripted_store.names
    assert [it.connect for it in scripted_store.performed if isinstance(it, Subscribe)] == [
        False,
        True,
    ]
