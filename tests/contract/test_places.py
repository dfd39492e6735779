"""Places in the queue, on every store: taken at publish, left when the run begins, replaced."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Conflict, Holder, Locks
from celery_locks.store.commands.locks import (
    QUEUED,
    AcquireExtras,
    Done,
    ReplacedReservation,
    ended_mark,
    reservation_token,
)
from celery_locks.types import LockSpec
from tests.contract.places import Place


@pytest.fixture
def locks(place: Place) -> Locks:
    return place.locks()


def published(locks: Locks, name: str, job: str, **how: Any) -> Any:
    holder = Holder(task_id=job, task="bill", retries=-1)
    spec = LockSpec(name, 60.0, how.pop("limit", 1))
    extras = AcquireExtras(**how)
    return locks.perform(
        locks.commands.acquire(spec, reservation_token(job), holder, extras=extras)
    )


def begun(locks: Locks, name: str, job: str, token: str = "", **how: Any) -> Any:
    holder = Holder(task_id=job, task="bill")
    spec = LockSpec(name, 30.0, how.pop("limit", 1))
    extras = AcquireExtras(reject_if_completed=True, **how)
    return locks.perform(locks.commands.acquire(spec, token or f"run-{job}", holder, extras=extras))


def tokens(locks: Locks, name: str) -> list[str]:
    return [holder.token for holder in locks.holders(name)]


def test_a_run_takes_its_messages_place_over(locks: Locks, place: Place) -> None:
    first = published(locks, "a", "one")
    assert isinstance(published(locks, "a", "two"), Conflict)
    assert begun(locks, "a", "one") > first
    assert tokens(locks, "a") == ["run-one"]
    locks.perform(locks.commands.release("a", "run-one"))
    assert place.keys() == {"fence"}


@pytest.mark.parametrize("number", range(20))
def test_beginning_frees_the_place_beside(locks: Locks, place: Place, number: int) -> None:
    """One call for two locks, which on a Cluster must be on one shard whatever the name."""
    name = f"lock-{number}"
    published(locks, name + QUEUED, "one")
    begun(locks, name, "one", release_on_grant=(name + QUEUED, reservation_token("one")))
    assert locks.info(name + QUEUED) is None
    assert tokens(locks, name) == ["run-one"]
    locks.perform(locks.commands.release(name, "run-one"))
    assert place.keys() == {"fence"}


def test_beginning_twice_is_safe(locks: Locks, place: Place) -> None:
    """Its reply was lost and it asks again, or it was handed the lock in line and confirms."""
    reservation = ("a" + QUEUED, reservation_token("one"))
    fence = begun(locks, "a", "one", release_on_grant=reservation)
    published(locks, *reservation[:1], "one")
    assert begun(locks, "a", "one", release_on_grant=reservation) == fence
    assert locks.info("a" + QUEUED) is None


def test_a_place_is_taken_only_from_a_message(locks: Locks, place: Place) -> None:
    """And keeps the time of the first, from which a window is counted."""
    published(locks, "a", "one")
    since = locks.holders("a")[0].acquired_at
    taken = published(locks, "a", "two", replace=reservation_token("one"))
    assert isinstance(taken, ReplacedReservation)
    assert tokens(locks, "a") == [reservation_token("two")]
    assert locks.holders("a")[0].acquired_at == since
    begun(locks, "a", "two")
    assert isinstance(published(locks, "a", "three", replace=reservation_token("two")), Conflict)
    assert isinstance(published(locks, "a", "three", replace="run-two"), Conflict)
    assert tokens(locks, "a") == ["run-two"]


def test_a_place_is_taken_also_by_who_hears_it_only_the_second_time(locks: Locks) -> None:
    """Else the publisher whose reply was lost would not mark the other, and both would run."""
    published(locks, "a", "one")
    taken = [published(locks, "a", "two", replace=reservation_token("one")) for _ in range(2)]
    assert all(isinstance(one, ReplacedReservation) for one in taken)
    assert taken[0] == taken[1]
    assert tokens(locks, "a") == [reservation_token("two")]


def test_a_place_that_is_gone_is_not_taken(locks: Locks, place: Place) -> None:
    """It was freed meanwhile: granted like any other, and nobody was replaced."""
    fence = published(locks, "a", "two", replace=reservation_token("one"))
    assert isinstance(fence, int)
    assert not isinstance(fence, ReplacedReservation)


def test_a_replaced_message_does_not_begin(locks: Locks, place: Place) -> None:
    """Marked by the publisher, or by the beginning of the one that replaced it."""
    published(locks, "a", "one")
    published(locks, "a", "two", replace=reservation_token("one"))
    assert begun(locks, "a", "one") == Done(is_being_replaced=True)
    assert begun(locks, "a" + QUEUED, "one") == Done(is_being_replaced=True)
    begun(locks, "a", "two", supersede=("one", 60.0))
    assert begun(locks, "a", "one") == Done(was_replaced=True)
    locks.perform(locks.commands.supersede("a", "three", 60.0))
    assert begun(locks, "a", "three") == Done(was_replaced=True)
    assert tokens(locks, "a") == ["run-two"]


def test_a_copy_hears_whether_the_attempt_that_ended_leaves_a_result(locks: Locks) -> None:
    """Without one nobody need wait for it; the next attempt is another one still."""
    first = Holder(task_id="one")
    for leaves_result in (True, False):
        mark = ended_mark(first, 60, leaves_result=leaves_result)
        locks.perform(locks.commands.release("a", "t", marks=[mark]))
        assert begun(locks, "a", "one") == Done(leaves_result=leaves_result)
    second = locks.commands.acquire(
        LockSpec("a"),
        "second",
        Holder(task_id="one", retries=1),
        AcquireExtras(reject_if_completed=True),
    )
    assert locks.perform(second) > 0


def test_a_place_of_a_limit_is_taken_alone(locks: Locks, place: Place) -> None:
    published(locks, "a", "one", limit=2)
    published(locks, "a", "two", limit=2)
    assert isinstance(published(locks, "a", "three", limit=2), Conflict)
    taken = published(locks, "a", "three", limit=2, replace=reservation_token("two"))
    assert isinstance(taken, ReplacedReservation)
    assert sorted(tokens(locks, "a")) == [reservation_token("one"), reservation_token("three")]


def test_a_slot_is_kept_for_the_next_attempt(locks: Locks, place: Place) -> None:
    """Under the job's own token: it is found by the id, and the attempt takes it over."""
    begun(locks, "a", "one")
    kept = reservation_token("one")
    locks.perform(locks.commands.release("a", "run-one", keep=60.0, keep_as=kept))
    assert tokens(locks, "a") == [kept]
    assert locks.holders("a")[0].is_queued
    root = locks.commands.root("a")
    found = locks.perform(locks.commands.locate(root, [kept], 1.0))
    assert found[kept][0] == "a"
    again = Holder(task_id="one", task="bill", retries=1)
    assert locks.perform(locks.commands.acquire(LockSpec("a"), "run-two", again)) > 0
    assert tokens(locks, "a") == ["run-two"]
    locks.perform(locks.commands.release("a", "run-two"))
    assert place.keys() == {"fence"}
