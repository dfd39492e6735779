"""Reservations, on every store: acquired at publish, released when the run starts, replaced."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Conflict, Holder, Locks
from celery_locks.store.commands.locks import AcquireExtras, ended_mark, reservation_token
from celery_locks.store.commands.replies import Ended, ReplacedReservation
from celery_locks.types import LockSpec
from celery_locks.validation import QUEUED
from tests.contract.backends import Backend
from tests.support.waiting import wait_until


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks()


def publish(locks: Locks, name: str, job: str, **options: Any) -> Any:
    extra = {"call": options.pop("call")} if "call" in options else {}
    holder = Holder(task_id=job, task="bill", retries=-1, extra=extra)
    spec = LockSpec(name, options.pop("ttl", 60.0), options.pop("limit", 1))
    extras = AcquireExtras(**options)
    return locks.perform(
        locks.commands.acquire(spec, reservation_token(job), holder, extras=extras)
    )


def start(locks: Locks, name: str, job: str, token: str = "", **options: Any) -> Any:
    holder = Holder(task_id=job, task="bill")
    spec = LockSpec(name, 30.0, options.pop("limit", 1))
    extras = AcquireExtras(reject_if_ended=True, **options)
    return locks.perform(locks.commands.acquire(spec, token or f"run-{job}", holder, extras=extras))


def tokens(locks: Locks, name: str) -> list[str]:
    return [holder.token for holder in locks.holders(name)]


def test_a_run_takes_over_the_reservation_of_its_message(locks: Locks, backend: Backend) -> None:
    first = publish(locks, "a", "one")
    assert isinstance(publish(locks, "a", "two"), Conflict)
    assert start(locks, "a", "one") > first
    assert tokens(locks, "a") == ["run-one"]
    locks.perform(locks.commands.release("a", "run-one"))
    assert backend.keys() == {"fence"}


def test_a_second_call_with_the_same_task_id_is_no_repeated_call(locks: Locks) -> None:
    """A repeated call gets its reservation again; another call of the same id finds it taken."""
    fence = publish(locks, "a", "one", call="x", limit=2)
    assert publish(locks, "a", "one", call="x", limit=2) == fence
    conflict = publish(locks, "a", "one", call="y", limit=2)
    assert isinstance(conflict, Conflict)
    assert [(it.task_id, it.extra) for it in conflict.holders] == [("one", {"call": "x"})]
    assert publish(locks, "a", "two", call="y", limit=2) > fence


def test_a_lapsed_reservation_of_the_same_task_id_is_not_in_the_way(
    locks: Locks, backend: Backend
) -> None:
    first = publish(locks, "a", "one", call="x", ttl=1.0)
    wait_until(lambda: not locks.holders("a"), 10)
    assert publish(locks, "a", "one", call="y") > first
    assert locks.holders("a")[0].extra == {"call": "y"}


@pytest.mark.parametrize("number", range(20))
def test_a_start_releases_the_other_reservation(
    locks: Locks, backend: Backend, number: int
) -> None:
    """One call for two locks, which on a Cluster must be on one shard whatever the name."""
    name = f"lock-{number}"
    publish(locks, name + QUEUED, "one")
    start(locks, name, "one", release_on_grant=(name + QUEUED, reservation_token("one")))
    assert locks.info(name + QUEUED) is None
    assert tokens(locks, name) == ["run-one"]
    locks.perform(locks.commands.release(name, "run-one"))
    assert backend.keys() == {"fence"}


def test_beginning_twice_is_safe(locks: Locks, backend: Backend) -> None:
    """Its reply was lost and the call is repeated, or it claims a lock that was handed over."""
    reservation = ("a" + QUEUED, reservation_token("one"))
    fence = start(locks, "a", "one", release_on_grant=reservation)
    publish(locks, *reservation[:1], "one")
    assert start(locks, "a", "one", release_on_grant=reservation) == fence
    assert locks.info("a" + QUEUED) is None


def test_only_a_reservation_is_replaced(locks: Locks, backend: Backend) -> None:
    """And it keeps the time of the first, from which a window is counted."""
    publish(locks, "a", "one")
    since = locks.holders("a")[0].acquired_at
    taken = publish(locks, "a", "two", replace=reservation_token("one"))
    assert isinstance(taken, ReplacedReservation)
    assert tokens(locks, "a") == [reservation_token("two")]
    assert locks.holders("a")[0].acquired_at == since
    start(locks, "a", "two")
    assert isinstance(publish(locks, "a", "three", replace=reservation_token("two")), Conflict)
    assert isinstance(publish(locks, "a", "three", replace="run-two"), Conflict)
    assert tokens(locks, "a") == ["run-two"]


def test_a_repeated_replacement_gets_the_same_reply(locks: Locks) -> None:
    """Otherwise a publisher whose reply was lost would not mark the other, and both would run."""
    publish(locks, "a", "one")
    taken = [publish(locks, "a", "two", replace=reservation_token("one")) for _ in range(2)]
    assert all(isinstance(fence, ReplacedReservation) for fence in taken)
    assert taken[0] == taken[1]
    assert tokens(locks, "a") == [reservation_token("two")]


def test_a_released_reservation_is_not_replaced(locks: Locks, backend: Backend) -> None:
    """It was released meanwhile: a normal grant, and nobody was replaced."""
    fence = publish(locks, "a", "two", replace=reservation_token("one"))
    assert isinstance(fence, int)
    assert not isinstance(fence, ReplacedReservation)


def test_a_replaced_message_does_not_begin(locks: Locks, backend: Backend) -> None:
    """Marked by the publisher, or by the start of the message that replaced it."""
    publish(locks, "a", "one")
    publish(locks, "a", "two", replace=reservation_token("one"))
    assert start(locks, "a", "one") == Ended(is_being_replaced=True)
    assert start(locks, "a" + QUEUED, "one") == Ended(is_being_replaced=True)
    start(locks, "a", "two", supersede=("one", 60.0))
    assert start(locks, "a", "one") == Ended(was_replaced=True)
    locks.perform(locks.commands.supersede("a", "three", 60.0))
    assert start(locks, "a", "three") == Ended(was_replaced=True)
    assert tokens(locks, "a") == ["run-two"]


def test_a_copy_hears_whether_the_attempt_that_ended_leaves_a_result(locks: Locks) -> None:
    """Without a result nobody needs to wait for it; the next attempt may still run."""
    first = Holder(task_id="one")
    for leaves_result in (True, False):
        mark = ended_mark(first, 60, leaves_result=leaves_result)
        locks.perform(locks.commands.release("a", "t", marks=[mark]))
        assert start(locks, "a", "one") == Ended(leaves_result=leaves_result)
    second = locks.commands.acquire(
        LockSpec("a"),
        "second",
        Holder(task_id="one", retries=1),
        AcquireExtras(reject_if_ended=True),
    )
    assert locks.perform(second) > 0


def test_only_one_reservation_of_a_limit_is_replaced(locks: Locks, backend: Backend) -> None:
    publish(locks, "a", "one", limit=2)
    publish(locks, "a", "two", limit=2)
    assert isinstance(publish(locks, "a", "three", limit=2), Conflict)
    taken = publish(locks, "a", "three", limit=2, replace=reservation_token("two"))
    assert isinstance(taken, ReplacedReservation)
    assert sorted(tokens(locks, "a")) == [reservation_token("one"), reservation_token("three")]


def test_a_slot_is_kept_for_the_same_attempt_if_its_message_is_requeued(
    locks: Locks, backend: Backend
) -> None:
    """Otherwise the message would take its own reservation for a copy that runs."""
    start(locks, "a", "one")
    kept = reservation_token("one", requeued=True)
    locks.perform(locks.commands.release("a", "run-one", keep_for=60.0, next_token=kept))
    assert tokens(locks, "a") == [kept]
    assert locks.holders("a")[0].is_queued
    same = Holder(task_id="one", task="bill", retries=0)
    assert locks.perform(locks.commands.acquire(LockSpec("a"), "run-two", same)) > 0
    assert tokens(locks, "a") == ["run-two"]
    locks.perform(locks.commands.release("a", "run-two"))
    assert backend.keys() == {"fence"}


def test_a_slot_is_kept_for_the_next_attempt(locks: Locks, backend: Backend) -> None:
    """Under the token of the job: it is found by the id, and the attempt takes it over."""
    start(locks, "a", "one")
    kept = reservation_token("one")
    locks.perform(locks.commands.release("a", "run-one", keep_for=60.0, next_token=kept))
    assert tokens(locks, "a") == [kept]
    assert locks.holders("a")[0].is_queued
    root = locks.commands.root("a")
    found = locks.perform(locks.commands.locate(root, [kept], 1.0))
    assert found[kept][0] == "a"
    again = Holder(task_id="one", task="bill", retries=1)
    assert locks.perform(locks.commands.acquire(LockSpec("a"), "run-two", again)) > 0
    assert tokens(locks, "a") == ["run-two"]
    locks.perform(locks.commands.release("a", "run-two"))
    assert backend.keys() == {"fence"}


# A due message that is left loses its reservation. It may still run, but never after a later one.


def leave(locks: Locks, job: str) -> bool:
    message = locks.holders("a" + QUEUED)[0]
    assert message.task_id == job
    left: bool = locks.perform(locks.commands.leave_message("a" + QUEUED, message))
    return left


def start_last(locks: Locks, job: str, newest: tuple[str, float] = ("a", 60.0)) -> Any:
    reservation = ("a" + QUEUED, reservation_token(job))
    return start(locks, "a", job, release_on_grant=reservation, newest=newest)


def end(locks: Locks, job: str) -> None:
    locks.perform(locks.commands.release("a", f"run-{job}"))


def test_starts_are_noted_only_while_a_message_without_reservation_may_come(
    locks: Locks, backend: Backend
) -> None:
    publish(locks, "a" + QUEUED, "one")
    start_last(locks, "one")
    end(locks, "one")
    assert backend.keys() == {"fence"}


def test_a_message_that_was_left_runs_before_the_next_one(locks: Locks, backend: Backend) -> None:
    publish(locks, "a" + QUEUED, "one")
    assert leave(locks, "one")
    publish(locks, "a" + QUEUED, "two")
    assert "n:a" in set(backend.keys())
    for job in ("one", "two"):
        assert start_last(locks, job) > 0
        assert start_last(locks, job) > 0, "the reply was lost and the call is repeated"
        end(locks, job)


def test_a_message_that_was_left_does_not_run_after_a_later_one(locks: Locks) -> None:
    """Its arguments are older: those of the last call must be the last that run."""
    for job in ("one", "two"):
        publish(locks, "a" + QUEUED, job)
        assert leave(locks, job)
    publish(locks, "a" + QUEUED, "three")
    assert start_last(locks, "two") > 0
    end(locks, "two")
    assert start_last(locks, "one") == Ended(was_replaced=True)
    assert start_last(locks, "three") > 0
    end(locks, "three")
    assert start_last(locks, "one") == Ended(was_replaced=True)


def test_every_message_that_was_left_runs_if_each_call_counts(locks: Locks) -> None:
    publish(locks, "a" + QUEUED, "one")
    leave(locks, "one")
    publish(locks, "a" + QUEUED, "two")
    for job in ("two", "one"):
        assert start_last(locks, job, newest=("", 0.0)) > 0
        end(locks, job)


def test_a_message_that_has_begun_is_not_left(locks: Locks) -> None:
    """The mark that it has ended must stay: a copy of it may come."""
    publish(locks, "a" + QUEUED, "one")
    message = locks.holders("a" + QUEUED)[0]
    start_last(locks, "one")
    mark = ended_mark(Holder(task_id="one"), 60)
    locks.perform(locks.commands.release("a", "run-one", marks=[mark]))
    assert not locks.perform(locks.commands.leave_message("a" + QUEUED, message))
    assert start_last(locks, "one") == Ended()
