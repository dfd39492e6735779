"""States of a lease, by a clock that the test moves."""

import logging
import os
import threading
from typing import Any

import pytest

from celery_locks import events
from celery_locks.core import lease as module
from celery_locks.core.lease import BaseLease, Lease, State, trusted_until
from celery_locks.errors import LeaseLost
from celery_locks.types import LockSpec


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now", made.now)
    return made


def a_lease(clock: Clock, on_lost: Any = None, **spec: Any) -> BaseLease:
    return Lease(LockSpec("a", **{"ttl": 10, **spec}), "t", 5, clock.now(), on_lost)


def test_deadline_is_before_the_stores() -> None:
    """Counted from before the call, with a margin for clocks of different speed."""
    assert trusted_until(100.0, 10) == pytest.approx(109.898)
    assert trusted_until(100.0, 1) < 101.0


def test_slow_answer_does_not_lengthen_the_trust(clock: Clock) -> None:
    lease = Lease(LockSpec("a", 10), "t", 5, clock.time - 4)
    assert lease.remaining == pytest.approx(5.898)


def test_lease_is_held_until_its_deadline(clock: Clock) -> None:
    lease = a_lease(clock)
    assert lease.state is State.HELD
    lease.check()
    clock.time += 9.89
    lease.check()
    assert lease.remaining > 0
    clock.time += 0.01
    assert lease.state is State.LOST
    assert lease.remaining == 0
    with pytest.raises(LeaseLost, match="not renewed in time"):
        lease.check()


def test_renewal_moves_the_deadline(clock: Clock) -> None:
    lease = a_lease(clock)
    clock.time += 5
    lease.mark_renewed(clock.time)
    assert lease.remaining == pytest.approx(9.898)
    assert lease.renewals == 1


def test_renewal_sent_earlier_does_not_move_it_back(clock: Clock) -> None:
    """The keeper's and the user's renewal may be answered in any order."""
    lease = a_lease(clock)
    lease.mark_renewed(clock.time + 3)
    lease.mark_renewed(clock.time + 1)
    assert lease.deadline == trusted_until(clock.time + 3, 10)


def test_shorter_ttl_counts_before_the_answer(clock: Clock) -> None:
    lease = a_lease(clock, ttl=30)
    lease.change_ttl(2, clock.time)
    assert lease.deadline == trusted_until(clock.time, 2)


def test_longer_ttl_counts_with_the_answer_only(clock: Clock) -> None:
    lease = a_lease(clock, ttl=10)
    lease.change_ttl(30, clock.time)
    assert lease.deadline == trusted_until(clock.time, 10)
    lease.mark_renewed(clock.time)
    assert lease.deadline == trusted_until(clock.time, 30)


def test_renewal_with_the_ttl_of_before_never_lengthens(clock: Clock) -> None:
    """Which of the two the store did last is not known, so the nearer one is believed."""
    lease = a_lease(clock, ttl=2)
    sent = clock.time
    lease.change_ttl(30, sent)
    lease.mark_renewed(sent, 30)
    lease.mark_renewed(sent, 2)
    assert lease.deadline == trusted_until(sent, 2)


def test_failed_renewal_is_not_a_loss(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    lease = a_lease(clock)
    with caplog.at_level(logging.WARNING, "celery_locks"):
        lease.suspend(OSError("no route"))
        lease.suspend(OSError("no route"))
    assert lease.state is State.SUSPENDED
    lease.check()
    assert caplog.text.count("no route") == 1
    lease.mark_renewed(clock.time)
    assert lease.state is State.HELD
    lease.suspend(OSError("again"))
    assert "again" in caplog.text


def test_revival_is_an_event(clock: Clock) -> None:
    seen: list[str] = []
    end = events.subscribe(lambda event: seen.append(event.kind))
    lease = a_lease(clock)
    clock.time += 11
    lease.mark_renewed(clock.time)
    lease.mark_renewed(clock.time)
    end()
    assert seen == ["revived", "renewed"]
    assert lease.state is State.HELD


def test_loss_is_told_exactly_once(clock: Clock) -> None:
    """By whoever notices first: the keeper, check, or both at once."""
    describe_entry: list[LeaseLost] = []
    lease = a_lease(clock, lambda lease, error: describe_entry.append(error))
    threads = [threading.Thread(target=lease.lose, args=(f"reason {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(LeaseLost):
        lease.check()
    assert len(describe_entry) == 1
    assert (describe_entry[0].name, lease.state) == ("a", State.LOST)
    assert lease.has_ended


def test_loss_is_final(clock: Clock) -> None:
    lease = a_lease(clock)
    lease.lose("gone")
    lease.mark_renewed(clock.time + 100)
    lease.suspend(OSError())
    assert lease.begin_release() is True  # it may be ours in the store still
    assert (lease.state, lease.remaining, lease.renewals) == (State.LOST, 0, 0)


def test_callback_that_fails_is_logged_and_the_event_still_comes(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    end = events.subscribe(lambda event: seen.append(event.kind))

    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    with caplog.at_level(logging.ERROR, "celery_locks"):
        a_lease(clock, fails).lose("gone")
    end()
    assert seen == ["lost"]
    assert "on_lost of lock 'a' failed" in caplog.text


def test_release_is_final_and_not_a_loss(clock: Clock) -> None:
    describe_entry: list[Any] = []
    lease = a_lease(clock, lambda *a: describe_entry.append(a))
    assert lease.begin_release() is True
    assert lease.begin_release() is False
    lease.lose("late")
    clock.time += 100
    assert (lease.state, describe_entry) == (State.RELEASED, [])
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check()


def test_lease_of_the_parent_is_foreign_in_a_fork(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = a_lease(clock)
    assert not lease.is_foreign()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert lease.is_foreign()
    assert lease.begin_release() is False
    assert lease.state is State.HELD


def test_a_fork_does_not_inherit_a_lock_that_a_thread_has(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is not there in the child; whoever asks would wait for it for ever."""
    lease = a_lease(clock)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lease._end_lock:
            held.set()
            over.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    asked: list[str] = []

    def ask() -> None:
        try:
            lease.check()
        except LeaseLost as error:
            asked.append(str(error))

    child = threading.Thread(target=ask, daemon=True)
    try:
        held.wait(30)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        clock.time += 11
        child.start()
        child.join(10)
        assert len(asked) == 1
    finally:
        over.set()
        other.join()


def test_repr_says_the_state(clock: Clock) -> None:
    assert repr(a_lease(clock)) == "<Lease 'a' held fence=5 remaining=9.9s>"
