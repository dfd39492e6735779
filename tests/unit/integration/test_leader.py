"""The leader: one candidate at a time, who is told when it is elected and when it loses."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import LeaseLost, Locks, LockUnavailable, LockUsageError, StopRequested, admin
from celery_locks.integration import leader as module
from celery_locks.integration.leader import Leader, leader, start_leaders, stop_leaders
from celery_locks.testing import in_memory_locks
from tests.support.waiting import wait_until

Make = Callable[..., Leader]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Iterator[Locks]:
    with in_memory_locks(app) as locks:
        yield locks


@pytest.fixture
def make(app: Celery, locks: Locks) -> Iterator[Make]:
    made: list[Leader] = []

    def make(**options: Any) -> Leader:
        made.append(Leader(app, "primary", **options))
        return made[-1]

    yield make
    for candidate in made:
        candidate.stop()


def wait_elected(candidate: Leader) -> None:
    wait_until(lambda: candidate.is_leader, what="the election")


def test_first_candidate_is_elected(make: Make) -> None:
    leases: list[Any] = []
    candidate = make(on_elected=leases.append)
    assert (candidate.is_leader, candidate.fence, candidate.lease) == (False, 0, None)
    candidate.start()
    candidate.start()
    wait_until(lambda: leases, what="the call of on_elected")
    assert candidate.is_leader
    assert candidate.lease is leases[0]
    assert candidate.fence == leases[0].fence > 0
    assert repr(candidate) == "<Leader 'primary' is leader>"


@pytest.mark.parametrize("option", ["on_elected", "on_lost"])
def test_callback_that_cannot_be_called_is_refused(app: Celery, option: str) -> None:
    """It would be found out when the leader is lost."""
    with pytest.raises(LockUsageError, match=f"{option} is 'stop'; write a function"):
        leader(app, "primary", **{option: "stop"})  # type: ignore[arg-type]


def test_second_takes_over_when_the_first_stops(make: Make, locks: Locks) -> None:
    """At once: it waits in line, and the release hands the lock over."""
    lost: list[Any] = []
    first, second = make(on_lost=lambda *args: lost.append(args)), make()
    first.start()
    wait_elected(first)
    fence = first.fence
    second.start()
    wait_until(lambda: (info := locks.info("primary")) and info.waiters, what="the second in line")
    assert not second.is_leader
    first.stop()
    assert not first.is_leader
    wait_elected(second)
    assert second.fence > fence
    assert lost == []


def test_candidate_that_stops_leaves_the_line(make: Make, locks: Locks) -> None:
    first, second = make(), make()
    first.start()
    wait_elected(first)
    second.start()
    wait_until(lambda: (info := locks.info("primary")) and info.waiters, what="the second in line")
    second.stop()
    wait_until(lambda: not (info := locks.info("primary")) or not info.waiters, what="its leave")
    assert first.is_leader


def test_holder_is_readable(make: Make, locks: Locks) -> None:
    candidate = make()
    candidate.start()
    wait_elected(candidate)
    [holder] = locks.holders("primary")
    assert str(holder).startswith("leader on ")
    assert holder.pid == os.getpid()


def test_revoked_leader_is_told_and_campaigns_again(make: Make, locks: Locks) -> None:
    lost: list[Any] = []
    candidate = make(on_lost=lambda lease, error: lost.append((candidate.is_leader, error)))
    candidate.start()
    wait_elected(candidate)
    fence = candidate.fence
    admin.force_release(locks, "primary", by="ann", reason="maintenance")
    lease = candidate.lease
    assert lease
    with pytest.raises(LeaseLost):
        lease.renew()
    wait_until(lambda: lost, what="the call of on_lost")
    [(was_leader, error)] = lost
    assert not was_leader
    assert isinstance(error, LeaseLost)
    assert "ann: maintenance" in str(error)
    wait_until(lambda: candidate.fence > fence, what="the next election")


def test_operator_may_ask_the_leader_to_step_down(make: Make, locks: Locks) -> None:
    """The lock is released only after on_lost: the next leader starts when this one has ended."""
    held: list[Any] = []
    first = make(on_lost=lambda lease, error: held.append((error, locks.is_locked("primary"))))
    first.start()
    wait_elected(first)
    second = make()
    second.start()
    wait_until(lambda: (info := locks.info("primary")) and info.waiters, what="the second in line")
    locks.stop("primary")
    assert first.lease
    first.lease.renew()
    wait_elected(second)
    [(error, was_locked)] = held
    assert isinstance(error, StopRequested)
    assert was_locked
    assert not first.is_leader


def test_failing_on_elected_steps_down(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Another may be able to lead."""

    def fail(_: Any) -> None:
        raise RuntimeError("no room")

    first, second = make(on_elected=fail), make()
    with caplog.at_level(logging.ERROR, "celery_locks"):
        first.start()
        wait_until(lambda: "on_elected of leader 'primary' failed" in caplog.text, what="the line")
        second.start()
        wait_elected(second)


def test_failing_on_elected_is_logged_once_a_minute(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is elected again every second, if there is no other candidate."""
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    calls = []

    def fail(lease: Any) -> None:
        calls.append(lease)
        raise RuntimeError("no room")

    with caplog.at_level(logging.INFO, "celery_locks"):
        make(on_elected=fail).start()
        wait_until(lambda: len(calls) >= 3, what="three terms")
    assert caplog.messages == ["on_elected of leader 'primary' failed: it steps down"]


def test_failing_on_lost_is_logged(
    make: Make, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no room")

    candidate = make(on_lost=fail)
    candidate.start()
    wait_elected(candidate)
    assert candidate.lease
    with caplog.at_level(logging.ERROR, "celery_locks"):
        candidate.lease.lose("test")
        wait_until(lambda: "on_lost of leader 'primary' failed" in caplog.text, what="the line")
    wait_elected(candidate)


@pytest.mark.parametrize("error", [LockUnavailable("no answer"), RuntimeError("a bug")])
def test_campaign_survives_errors(
    make: Make, locks: Locks, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A thread that ends of an error would leave all processes without a leader, silently."""
    perform, failed = locks._store.perform, threading.Event()

    def fail(call: Any) -> Any:
        failed.set()
        raise error

    monkeypatch.setattr(module, "_PAUSE", 0.05)
    monkeypatch.setattr(locks._store, "perform", fail)
    candidate = make(ttl=1)
    candidate.start()
    assert failed.wait(10)
    monkeypatch.setattr(locks._store, "perform", perform)
    wait_elected(candidate)


def test_forked_child_knows_the_leader_until_its_deadline(make: Make) -> None:
    """A pool child asks without I/O, and may have been forked before the election."""
    candidate = make(ttl=60)
    before = ask_in_child(candidate)
    assert before() == "False 0"
    before = ask_in_child(candidate)
    candidate.start()
    wait_elected(candidate)
    assert before() == f"True {candidate.fence}"
    assert ask_in_child(candidate)() == f"True {candidate.fence}"
    candidate.stop()
    assert ask_in_child(candidate)() == "False 0"


def ask_in_child(candidate: Leader) -> Callable[[], str]:
    """Fork a child that answers when it is asked."""
    asked, ask = os.pipe()
    answers, answer = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(asked, 1)
        os.write(answer, f"{candidate.is_leader} {candidate.fence}".encode())
        os._exit(0)

    def answered() -> str:
        os.write(ask, b"?")
        output = os.read(answers, 100).decode()
        os.waitpid(pid, 0)
        for end in (asked, ask, answers, answer):
            os.close(end)
        return output

    return answered


def test_deadline_that_passes_ends_the_term(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the whole process nothing has run that could tell it."""
    candidate = make(ttl=60)
    candidate.start()
    wait_elected(candidate)
    later = module.now() + 61
    monkeypatch.setattr("celery_locks.core.lease.now", lambda: later)
    assert not candidate.is_leader
    assert candidate.lease is None


def test_workers_start_and_stop_the_leaders_of_their_app(
    app: Celery, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_leaders", [])
    primary = leader(app, "primary")
    other = Celery("other", broker="memory://", set_as_current=False)
    start_leaders(SimpleNamespace(app=other))
    assert primary._campaign is None
    start_leaders(SimpleNamespace(app=app))
    wait_elected(primary)
    stop_leaders(SimpleNamespace(app=other))
    assert primary.is_leader
    stop_leaders(SimpleNamespace(app=app))
    assert not primary.is_leader
    assert not locks.is_locked("primary")
    other.close()


@pytest.mark.parametrize(("name", "ttl"), [("", 5), ("a (queued)", 5), ("a", 0.5), ("a", "5")])
def test_wrong_input_is_refused_at_once(app: Celery, name: str, ttl: Any) -> None:
    with pytest.raises(LockUsageError):
        Leader(app, name, ttl=ttl)
