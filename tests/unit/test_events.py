"""Whoever listens cannot stand in the way of whoever locks."""

import logging

import fakeredis
import pytest

from celery_locks import Locks, events, logs
from celery_locks.events import LockEvent, emit, subscribe


@pytest.fixture(autouse=True)
def nobody_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_subscribers", ())
    monkeypatch.setattr(events, "_reports", logs.Reports())


def test_emit_tells_every_subscriber() -> None:
    one: list[LockEvent] = []
    two: list[LockEvent] = []
    subscribe(one.append)
    subscribe(two.append)
    emit("acquired", "a", "t", 5, waited=0.5)
    assert one == two
    [event] = one
    assert (event.kind, event.name, event.token, event.fence) == ("acquired", "a", "t", 5)
    assert event.detail == {"waited": 0.5}
    assert event.at > 1e9


def test_subscriber_that_fails_is_logged_and_blocks_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[LockEvent] = []

    def fails(event: LockEvent) -> None:
        raise RuntimeError("broken")

    subscribe(fails)
    subscribe(seen.append)
    with caplog.at_level(logging.ERROR, "celery_locks"):
        for _ in range(5):
            emit("released", "a")
    assert len(seen) == 5
    assert len(caplog.records) == 1, "renewals come three times a ttl, for every lock"
    assert "failed on released of lock 'a'" in caplog.text
    assert "broken" in caplog.text


def test_subscription_ends() -> None:
    seen: list[LockEvent] = []
    end = subscribe(seen.append)
    emit("lost", "a")
    end()
    end()
    emit("lost", "a")
    assert len(seen) == 1


def test_subscriber_may_leave_while_it_is_told() -> None:
    seen: list[str] = []

    def once(event: LockEvent) -> None:
        seen.append(event.kind)
        end()

    end = subscribe(once)
    emit("lost", "a")
    emit("lost", "a")
    assert seen == ["lost"]


def test_no_event_is_made_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LockEvent", None)
    emit("acquired", "a")


@pytest.fixture
def locks() -> Locks:
    return Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))


def _raises(event: LockEvent) -> None:
    raise RuntimeError("broken")


def test_subscriber_that_raises_keeps_no_lock(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    events.subscribe(_raises)
    with locks.hold("a"):
        assert locks.is_locked("a")
    assert not locks.is_locked("a")
    assert "broken" in caplog.text


def test_subscriber_that_is_slow_keeps_no_lock(locks: Locks) -> None:
    """It is told of a release when the lock is free already."""
    seen: list[tuple[str, bool]] = []
    events.subscribe(lambda event: seen.append((event.kind, locks.is_locked(event.name))))
    with locks.hold("a"):
        pass
    assert seen == [("acquired", True), ("released", False)]
