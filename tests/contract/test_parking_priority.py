"""Parked messages on every store: those with a higher rank come first (``by_priority``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import admin
from celery_locks.store.commands.replies import Parked
from celery_locks.types import LockSpec
from tests.contract.backends import Backend
from tests.contract.test_queue import in_line
from tests.support.parked_calls import ParkedCalls, parked_token


@pytest.fixture
def calls(backend: Backend) -> ParkedCalls:
    calls = ParkedCalls(backend.locks())
    calls.start("first")
    return calls


def order(calls: ParkedCalls) -> list[str]:
    return [token[1:] for token in calls.waiting()]


def test_higher_rank_comes_first_and_equals_keep_their_order(calls: ParkedCalls) -> None:
    """A promise of two parts: the priority decides, and within it first come, first served."""
    ranks = {"a": 0, "b": -3, "c": 5, "d": 0, "e": 5, "f": 255, "g": -255, "h": -3}
    for job, rank in ranks.items():
        calls.park(job, rank=rank)
    assert order(calls) == ["f", "c", "e", "a", "d", "b", "h", "g"]
    ran, running = [], "first"
    for _ in ranks:
        calls.end(running)
        running = calls.holding()[0][1:]
        calls.wake(running)
        assert isinstance(calls.start(running), int)
        ran.append(running)
    assert ran == ["f", "c", "e", "a", "d", "b", "h", "g"]


def test_message_parked_again_keeps_its_place(calls: ParkedCalls) -> None:
    """The broker delivers a copy: it must not lose or gain a place by it."""
    calls.park("a", "b", rank=2)
    assert calls.start_or_park("b", rank=2, token="copy") == Parked(2)
    assert order(calls) == ["a", "b"]


def test_blocking_waiter_has_the_rank_of_a_message_without_priority(
    calls: ParkedCalls, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """They share one queue, and a process that waits has no priority."""
    waiting = backend.api("sync")
    calls.park("default")
    waiter = in_thread(waiting.acquire, "a", wait=60, ttl=60)
    in_line(backend.api("sync"), "a", 2)
    calls.park("low", rank=-1)
    calls.park("high", rank=1)
    [token] = [it for it in calls.waiting() if not it.startswith("k")]
    assert calls.waiting() == [*map(parked_token, ("high", "default")), token, parked_token("low")]
    for job in ("low", "high", "default"):
        calls.unpark(job, publish=False)
    calls.end("first")
    waiting.release(waiter.result(timeout=30))


def test_first_message_gets_a_slot_that_is_free_for_it(calls: ParkedCalls) -> None:
    """The one that was first had the lower limit: nobody else would look at the free slot."""
    calls.park("one at a time")
    assert calls.start_or_park("two at a time", limit=2, rank=1) == Parked(1)
    assert calls.holding() == ["run-first", parked_token("two at a time")]
    calls.wake("two at a time")


def test_first_message_does_not_wait_for_a_waiter_for_several_locks(
    calls: ParkedCalls, backend: Backend
) -> None:
    """That waiter holds nothing: its lock is free while it waits for the other one."""
    commands = calls.locks.commands
    several = [LockSpec("a", 30), LockSpec("b", 30)]
    calls.start("other", "b")
    holder = calls.locks.holders("a")[0]._replace(task_id=None)
    call = commands.acquire(several[0], "both", holder, alive=60, also=several[1:])
    calls.locks.perform(call)
    calls.end("first")
    assert calls.holding() == []
    calls.park("low", rank=-1)
    assert calls.holding() == []
    calls.park("high", rank=1)
    assert calls.holding() == [parked_token("high")]


def test_group_does_not_join_the_turn_of_another_rank(calls: ParkedCalls) -> None:
    """Tasks of one lock may have different options: a group has no priority."""
    calls.park("high", rank=3)
    calls.park("low", rank=-3)
    calls.park("default")
    for group in ("x", "y", "x"):
        calls.park(f"{group}{len(order(calls))}", group=group)
    assert order(calls) == ["high", "default", "x3", "y4", "x5", "low"]


def test_woken_message_that_meets_a_pause_comes_first_again(calls: ParkedCalls) -> None:
    """Its turn had come: only a message with a higher priority may pass it."""
    calls.park("woken", rank=2)
    calls.end("first")
    calls.wake("woken")
    admin.pause(calls.locks, "a")
    calls.park("woken", rank=2)
    calls.park("default")
    calls.park("higher", rank=3)
    assert order(calls) == ["higher", "woken", "default"]
    admin.resume(calls.locks, "a")


def test_purge_removes_all_ranks(calls: ParkedCalls) -> None:
    """Tickets below zero are tickets too."""
    for rank in (255, 0, -255):
        calls.park(f"rank {rank}", rank=rank)
    assert len(admin.purge(calls.locks, "a", reason="test").messages) == 3
    assert order(calls) == []
