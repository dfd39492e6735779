"""Deadlocks: the wait that closes a cycle ends at once, on every store, and no other wait does."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from celery_locks import Conflict, Holder, LockConflict, LockDeadlock, LockEvent, subscribe
from celery_locks.core.waiting import REPOLL
from tests.contract.faces import LeaseBackend
from tests.contract.places import Place
from tests.support.waiting import wait_until

# Longer than any test: whoever waits so long has not been told of a deadlock.
LONG = 50.0


def in_line(face: LeaseBackend, name: str, count: int = 1) -> None:
    def waiting() -> bool:
        info = face.info(name)
        return info is not None and len(info.waiters) == count

    wait_until(waiting, what=f"{count} waiters on {name}")


def hold_all(face: LeaseBackend, *names: str, **asked: Any) -> list[str]:
    """Acquire them one after the other, waiting for each, and release them all."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(face.hold(name, wait=LONG, **asked))
        return list(names)


def test_two_that_wait_for_each_other_are_told(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any], place: Place
) -> None:
    """The second to wait is raised in, at once; the first gets what it waits for."""
    with face.hold("a"):
        first = in_thread(hold_all, other, "b", "a")
        in_line(face, "a")
        began = time.monotonic()
        with pytest.raises(LockDeadlock) as caught, face.hold("b", wait=LONG):
            pass
        assert time.monotonic() - began < 10
        assert [step.name for step in caught.value.cycle] == ["b", "a"]
        assert "which waits for lock 'a', held by the caller" in str(caught.value)
        assert not first.done()
    assert first.result(timeout=30) == ["b", "a"]
    assert place.keys() <= {"fence"}


def test_three_in_a_ring_are_told(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any], place: Place
) -> None:
    with face.hold("a"):
        others = [in_thread(hold_all, other, "c", "a")]
        in_line(face, "a")
        others.append(in_thread(hold_all, other, "b", "c"))
        in_line(face, "c")
        with pytest.raises(LockDeadlock) as caught, face.hold("b", wait=LONG):
            pass
        assert [step.name for step in caught.value.cycle] == ["b", "c", "a"]
    for one in others:
        one.result(timeout=30)


def test_both_at_once_raise_in_one_of_them(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    """Neither none nor both: the last in line gives way, and the other one gets its lock."""
    barrier_names = ["a", "b"]

    def visit(chosen: LeaseBackend, mine: str, theirs: str) -> str:
        with chosen.hold(mine, wait=LONG):
            wait_until(lambda: all(face.is_locked(n) for n in barrier_names), what="both held")
            try:
                with chosen.hold(theirs, wait=LONG):
                    return "got"
            except LockDeadlock:
                return "deadlock"

    for _ in range(5):
        visits = [in_thread(visit, face, "a", "b"), in_thread(visit, other, "b", "a")]
        answers = [visit.result(timeout=30) for visit in visits]
        assert sorted(answers) == ["deadlock", "got"]


def test_waiting_for_ones_own_lock_is_told(face: LeaseBackend, place: Place) -> None:
    """It can never end, and the text says what to do."""
    with face.hold("a"):
        began = time.monotonic()
        with (
            pytest.raises(LockDeadlock, match="reentrant=True") as caught,
            face.hold("a", wait=LONG),
        ):
            pass
        assert time.monotonic() - began < 10
        assert [step.name for step in caught.value.cycle] == ["a"]
        with pytest.raises(LockDeadlock):
            face.acquire("a", wait=LONG)
        with pytest.raises(LockDeadlock):
            face.try_acquire("a", wait=LONG)
    assert place.keys() <= {"fence"}


def test_conflict_with_oneself_says_so(face: LeaseBackend) -> None:
    """Without waiting too: a reader of the log looks for another process otherwise."""
    with face.hold("a"):
        with pytest.raises(LockConflict, match="reentrant=True"), face.hold("a"):
            pass
        conflict = face.try_acquire("a")
        assert isinstance(conflict, Conflict)
        assert conflict.is_own


def test_conflict_with_others_does_not_say_so(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    with face.hold("a"):
        conflict = in_thread(other.try_acquire, "a").result()
    assert not conflict.is_own
    assert "reentrant" not in str(conflict)


def test_reentrant_enters_what_a_plain_hold_has(face: LeaseBackend) -> None:
    """As the text of the deadlock promises, waiting or not."""
    with face.hold("a") as outer:
        with face.hold("a", reentrant=True) as inner:
            assert inner is outer
        with face.hold("a", reentrant=True, wait=LONG) as inner:
            assert inner is outer
        assert face.is_locked("a")
        assert not outer.entries
    assert not face.is_locked("a")


def test_reentrant_enters_what_another_object_holds_for_this_thread(place: Place) -> None:
    """A task's lock belongs to the app's locks, and its code has made others."""
    locks, other = place.locks(), place.locks()
    with locks.hold("a") as outer:
        with other.hold("a", reentrant=True) as inner:
            assert inner is outer
        with other.hold("a", reentrant=True, wait=LONG) as inner:
            assert inner is outer
        assert not outer.entries
        assert locks.is_locked("a")
    assert not locks.is_locked("a")


def test_a_lease_that_may_be_passed_on_is_no_deadlock(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    """Slots acquired in a loop and released by workers are a usual pattern."""
    lease = face.acquire("a", ttl=60)
    with face.hold("b"):
        waiter = in_thread(lambda: (time.sleep(2 * REPOLL), face.release(lease)))
        assert face.acquire("a", wait=LONG)
        waiter.result()


def test_a_semaphore_is_no_deadlock_while_one_slot_can_come_free(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    """Only if every slot is held by somebody who waits for us."""
    free = face.acquire("s", limit=2, ttl=60)
    with face.hold("a"):
        first = in_thread(hold_both, other)
        in_line(face, "a")
        waiting = in_thread(lambda: (time.sleep(2 * REPOLL), face.release(free)))
        with face.hold("s", limit=2, wait=LONG):
            pass
        waiting.result()
    first.result(timeout=30)


def hold_both(face: LeaseBackend) -> None:
    with face.hold("s", limit=2, wait=LONG), face.hold("a", wait=LONG):
        pass


def test_a_semaphore_whose_holders_all_wait_for_us_is_a_deadlock(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    with face.hold("a"):
        holders = [in_thread(hold_both, other) for _ in range(2)]
        in_line(face, "a", 2)
        with pytest.raises(LockDeadlock) as caught, face.hold("s", limit=2, wait=LONG):
            pass
        assert [step.name for step in caught.value.cycle] == ["s", "a"]
    for holder in holders:
        holder.result(timeout=30)


def test_a_wait_for_one_who_waits_for_others_is_no_deadlock(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    """A chain is not a ring: it ends when its last link runs on."""
    last = face.acquire("c", ttl=60)
    middle = in_thread(hold_all, other, "b", "c")
    in_line(face, "c")
    with face.hold("a"):
        ending = in_thread(lambda: (time.sleep(2 * REPOLL), face.release(last)))
        with face.hold("b", wait=LONG):
            pass
    middle.result(timeout=30)
    ending.result()


def test_a_wait_that_has_ended_does_not_count(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    """Its patience is over, it goes on and releases: there is nothing to be told of."""

    def impatient() -> None:
        with other.hold("b"):
            assert other.acquire("a", wait=0.3) is None
            gave_up.append(True)
            wait_until(lambda: in_line(face, "b") is None, what="the other to wait")
            time.sleep(2 * REPOLL)

    gave_up: list[bool] = []
    with face.hold("a"):
        one = in_thread(impatient)
        wait_until(lambda: bool(gave_up), what="it gave up")
        with face.hold("b", wait=LONG):
            pass
    one.result(timeout=30)


def test_deadlock_over_several_shards(
    place: Place, kind: str, in_thread: Callable[..., Any]
) -> None:
    """Shards cannot be read at one moment; the answer is the same."""
    face, other = place.face(kind, shards=16), place.face(kind, shards=16)
    commands = place.locks(shards=16).commands
    assert commands.root("a") != commands.root("b")
    with face.hold("a"):
        first = in_thread(hold_all, other, "b", "a")
        in_line(face, "a")
        with pytest.raises(LockDeadlock), face.hold("b", wait=LONG):
            pass
    first.result(timeout=30)


def test_deadlock_is_told_as_an_event(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    heard: list[LockEvent] = []
    unsubscribe = subscribe(heard.append)
    try:
        with face.hold("a"), pytest.raises(LockDeadlock), face.hold("a", wait=LONG):
            pass
    finally:
        unsubscribe()
    [describe_entry] = [event for event in heard if event.kind == "deadlock"]
    assert describe_entry.name == "a"
    assert "reentrant=True" in describe_entry.detail["why"]


def test_holder_that_is_given_has_no_owner(face: LeaseBackend) -> None:
    """Who says who it is may hold it for somebody else."""
    with face.hold("a", holder=Holder(task_id="t", host="h")):
        [holder] = face.holders("a")
        assert not holder.owner
        assert face.acquire("a", wait=0.2) is None
