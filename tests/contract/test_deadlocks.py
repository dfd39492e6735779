"""Deadlocks: the wait that closes a cycle ends at once, on every store, and no other wait does."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from celery_locks import Conflict, Holder, LockConflict, LockDeadlock, LockEvent, subscribe
from celery_locks.core.waiting import REPOLL
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.waiting import wait_until

# Longer than any test: a waiter that waits so long was not told of a deadlock.
LONG = 50.0


def in_line(api: LocksApi, name: str, count: int = 1) -> None:
    def waiting() -> bool:
        info = api.info(name)
        return info is not None and len(info.waiters) == count

    wait_until(waiting, what=f"{count} waiters on {name}")


def hold_all(api: LocksApi, *names: str, **options: Any) -> list[str]:
    """Acquire them one after the other, waiting for each, and release them all."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(api.hold(name, wait=LONG, **options))
        return list(names)


def test_two_that_wait_for_each_other_are_told(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any], backend: Backend
) -> None:
    """The second waiter gets the error at once; the first gets the lock that it waits for."""
    with api.hold("a"):
        first = in_thread(hold_all, other, "b", "a")
        in_line(api, "a")
        began = time.monotonic()
        with pytest.raises(LockDeadlock) as caught, api.hold("b", wait=LONG):
            pass
        assert time.monotonic() - began < 10
        assert [step.name for step in caught.value.cycle] == ["b", "a"]
        assert "which waits for lock 'a', held by the caller" in str(caught.value)
        assert not first.done()
    assert first.result(timeout=30) == ["b", "a"]
    assert backend.keys() <= {"fence"}


def test_three_in_a_ring_are_told(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any], backend: Backend
) -> None:
    with api.hold("a"):
        others = [in_thread(hold_all, other, "c", "a")]
        in_line(api, "a")
        others.append(in_thread(hold_all, other, "b", "c"))
        in_line(api, "c")
        with pytest.raises(LockDeadlock) as caught, api.hold("b", wait=LONG):
            pass
        assert [step.name for step in caught.value.cycle] == ["b", "c", "a"]
    for waiter in others:
        waiter.result(timeout=30)


def test_both_at_once_raise_in_one_of_them(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """Exactly one of them: the last waiter gets the error, and the other gets its lock."""
    barrier_names = ["a", "b"]

    def visit(chosen: LocksApi, first_name: str, second_name: str) -> str:
        with chosen.hold(first_name, wait=LONG):
            wait_until(lambda: all(api.is_locked(n) for n in barrier_names), what="both held")
            try:
                with chosen.hold(second_name, wait=LONG):
                    return "got"
            except LockDeadlock:
                return "deadlock"

    for _ in range(5):
        visits = [in_thread(visit, api, "a", "b"), in_thread(visit, other, "b", "a")]
        answers = [visit.result(timeout=30) for visit in visits]
        assert sorted(answers) == ["deadlock", "got"]


def test_waiting_for_ones_own_lock_is_told(api: LocksApi, backend: Backend) -> None:
    """The wait can never end, and the message says what to do."""
    with api.hold("a"):
        began = time.monotonic()
        with (
            pytest.raises(LockDeadlock, match="reentrant=True") as caught,
            api.hold("a", wait=LONG),
        ):
            pass
        assert time.monotonic() - began < 10
        assert [step.name for step in caught.value.cycle] == ["a"]
        with pytest.raises(LockDeadlock):
            api.acquire("a", wait=LONG)
        with pytest.raises(LockDeadlock):
            api.try_acquire("a", wait=LONG)
    assert backend.keys() <= {"fence"}


def test_conflict_with_oneself_says_so(api: LocksApi) -> None:
    """Also without waiting: otherwise a reader of the log looks for another process."""
    with api.hold("a"):
        with pytest.raises(LockConflict, match="reentrant=True"), api.hold("a"):
            pass
        conflict = api.try_acquire("a")
        assert isinstance(conflict, Conflict)
        assert conflict.is_own


def test_conflict_with_others_does_not_say_so(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    with api.hold("a"):
        conflict = in_thread(other.try_acquire, "a").result()
    assert not conflict.is_own
    assert "reentrant" not in str(conflict)


def test_reentrant_enters_what_a_plain_hold_has(api: LocksApi) -> None:
    """As the message of the deadlock promises, with and without waiting."""
    with api.hold("a") as outer:
        with api.hold("a", reentrant=True) as inner:
            assert inner is outer
        with api.hold("a", reentrant=True, wait=LONG) as inner:
            assert inner is outer
        assert api.is_locked("a")
        assert not outer.entries
    assert not api.is_locked("a")


def test_reentrant_enters_what_another_object_holds_for_this_thread(backend: Backend) -> None:
    """A task's lock belongs to the app's locks, and its code has made others."""
    locks, other = backend.locks(), backend.locks()
    with locks.hold("a") as outer:
        with other.hold("a", reentrant=True) as inner:
            assert inner is outer
        with other.hold("a", reentrant=True, wait=LONG) as inner:
            assert inner is outer
        assert not outer.entries
        assert locks.is_locked("a")
    assert not locks.is_locked("a")


def test_a_lease_that_may_be_passed_on_is_no_deadlock(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """Slots acquired in a loop and released by workers are a usual pattern."""
    lease = api.acquire("a", ttl=60)
    with api.hold("b"):
        waiter = in_thread(lambda: (time.sleep(2 * REPOLL), api.release(lease)))
        assert api.acquire("a", wait=LONG)
        waiter.result()


def test_a_semaphore_is_no_deadlock_while_one_slot_can_come_free(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """Only if the holder of every slot waits for us."""
    free = api.acquire("s", limit=2, ttl=60)
    with api.hold("a"):
        first = in_thread(hold_both, other)
        in_line(api, "a")
        waiting = in_thread(lambda: (time.sleep(2 * REPOLL), api.release(free)))
        with api.hold("s", limit=2, wait=LONG):
            pass
        waiting.result()
    first.result(timeout=30)


def hold_both(api: LocksApi) -> None:
    with api.hold("s", limit=2, wait=LONG), api.hold("a", wait=LONG):
        pass


def test_a_semaphore_whose_holders_all_wait_for_us_is_a_deadlock(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    with api.hold("a"):
        holders = [in_thread(hold_both, other) for _ in range(2)]
        in_line(api, "a", 2)
        with pytest.raises(LockDeadlock) as caught, api.hold("s", limit=2, wait=LONG):
            pass
        assert [step.name for step in caught.value.cycle] == ["s", "a"]
    for holder in holders:
        holder.result(timeout=30)


def test_a_wait_for_one_who_waits_for_others_is_no_deadlock(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """A chain is not a cycle: it ends when its last holder goes on."""
    last = api.acquire("c", ttl=60)
    middle = in_thread(hold_all, other, "b", "c")
    in_line(api, "c")
    with api.hold("a"):
        ending = in_thread(lambda: (time.sleep(2 * REPOLL), api.release(last)))
        with api.hold("b", wait=LONG):
            pass
    middle.result(timeout=30)
    ending.result()


def test_a_wait_that_has_ended_does_not_count(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """Its wait is over, it goes on and releases: there is no deadlock to report."""

    def impatient() -> None:
        with other.hold("b"):
            assert other.acquire("a", wait=0.3) is None
            gave_up.append(True)
            wait_until(lambda: in_line(api, "b") is None, what="the other to wait")
            time.sleep(2 * REPOLL)

    gave_up: list[bool] = []
    with api.hold("a"):
        waiter = in_thread(impatient)
        wait_until(lambda: bool(gave_up), what="it gave up")
        with api.hold("b", wait=LONG):
            pass
    waiter.result(timeout=30)


def test_deadlock_over_several_shards(
    backend: Backend, kind: str, in_thread: Callable[..., Any]
) -> None:
    """Shards cannot be read in one step; the result is the same."""
    api, other = backend.api(kind, shards=16), backend.api(kind, shards=16)
    commands = backend.locks(shards=16).commands
    assert commands.root("a") != commands.root("b")
    with api.hold("a"):
        first = in_thread(hold_all, other, "b", "a")
        in_line(api, "a")
        with pytest.raises(LockDeadlock), api.hold("b", wait=LONG):
            pass
    first.result(timeout=30)


def test_deadlock_is_told_as_an_event(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    heard: list[LockEvent] = []
    unsubscribe = subscribe(heard.append)
    try:
        with api.hold("a"), pytest.raises(LockDeadlock), api.hold("a", wait=LONG):
            pass
    finally:
        unsubscribe()
    [describe_entry] = [event for event in heard if event.kind == "deadlock"]
    assert describe_entry.name == "a"
    assert "reentrant=True" in describe_entry.detail["why"]


def test_holder_that_is_given_has_no_owner(api: LocksApi) -> None:
    """A caller that names its holder may hold the lock for another owner."""
    with api.hold("a", holder=Holder(task_id="t", host="h")):
        [holder] = api.holders("a")
        assert not holder.owner
        assert api.acquire("a", wait=0.2) is None
