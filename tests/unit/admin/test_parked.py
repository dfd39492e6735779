"""The position of parked messages, and what becomes of a purge that is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Locks, LockUsageError, admin
from celery_locks.errors import LockUnavailable
from tests.support.held_locks import held_for, take
from tests.support.parked import park


def test_why_estimates_the_start_by_past_holds(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 100, 120, 140)
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    for task_id in ("one", "two", "three"):
        park(locks, "a", task_id)
    clock.shift(90)
    third = admin.why(locks, "three").sentences[0]
    assert third == (
        "Task three is parked for lock 'a': third in line of 3, about 4 min by its usual hold "
        "(3 past holds)."
    ), "30 s of the holder, and two holds"
    first = admin.why(locks, "one").sentences[0]
    assert ": first in line of 3, about 30 s by its usual hold" in first
    about = admin.why(locks, "a").sentences
    assert "3 parked messages wait on the lock server, the oldest for 1 min 30 s." in about
    assert "A message that is parked now starts in about 6 min by the usual hold." in about
    assert "  1. task bill[one] on h, pid 7, parked for 1 min 30 s" in about


def test_estimate_knows_slots_and_holders_that_take_too_long(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 120)
    take(locks, "s", worker="w", task="bill", task_id="t", ttl=600)
    for task_id in ("one", "two", "three"):
        park(locks, "s", task_id)
    clock.shift(500)
    assert "about 2 min" in admin.why(locks, "two").sentences[0]
    admin.set_limit(locks, "s", 2, reason="more")
    assert "first in line of 2, about 1 s" in admin.why(locks, "two").sentences[0]
    assert "second in line of 2, about 2 min" in admin.why(locks, "three").sentences[0]


@pytest.mark.parametrize("paused", [False, True])
def test_why_does_not_guess(locks: Locks, clock: Any, paused: bool) -> None:
    """Without past holds, or while the lock is paused, nobody knows."""
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    park(locks, "a", "one")
    if paused:
        held_for(locks, clock, 60)
        admin.pause(locks, "a", reason="stop")
    sentence = admin.why(locks, "one").sentences[0]
    assert "about" not in sentence
    expected = "while the lock is paused." if paused else "is not known yet."
    assert sentence.endswith(expected)
    assert not any("starts in" in sentence for sentence in admin.why(locks, "a").sentences)


@pytest.mark.parametrize("reason", ["", "  "])
def test_purge_needs_a_reason(locks: Locks, reason: str) -> None:
    with pytest.raises(LockUsageError, match="needs a reason"):
        admin.purge(locks, "a", reason=reason)


def test_purge_that_is_interrupted_returns_what_was_removed(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These messages exist nowhere else any more."""
    monkeypatch.setattr("celery_locks.store.commands.parking.PURGE_BATCH", 2)
    take(locks, "a", task="bill", task_id="t")
    for number in range(3):
        park(locks, "a", f"t{number}")
    performed, calls = locks.perform, list[Any]()

    def perform(call: Any) -> Any:
        calls.append(call)
        if len(calls) > 1:
            raise LockUnavailable("no answer")
        return performed(call)

    monkeypatch.setattr(type(locks), "perform", lambda self, call: perform(call))
    purged = admin.purge(locks, "a", reason="all", by="ann")
    assert [it.holder.task_id for it in purged.messages] == ["t0", "t1"]
    assert purged.trouble == "no answer"
    with pytest.raises(LockUnavailable):
        admin.purge(locks, "a", reason="all", by="ann")


def test_purge_does_not_show_the_arguments(locks: Locks) -> None:
    take(locks, "a", task="bill", task_id="t")
    park(locks, "a", "one", message='{"body": "secret"}')
    assert "secret" not in str(admin.purge(locks, "a", reason="all").as_dict())
