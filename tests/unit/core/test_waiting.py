"""Waiting for a busy lock."""

from typing import Any

import fakeredis
import pytest

from celery_locks import LockDeadlock, Locks, LockUnavailable
from celery_locks.core import waiting


@pytest.fixture
def locks() -> Any:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


def test_wait_goes_on_where_nobody_can_say(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is away must not end a wait on another one."""
    asked: list[str] = []

    def fail(root: str, owners: Any) -> Any:
        asked.append(root)
        raise LockUnavailable("as planned")

    monkeypatch.setattr(locks.commands, "waits", fail)
    with locks.hold("a"):
        assert locks.acquire("a", wait=0.1) is None
    assert asked


def test_two_readings_that_differ_are_no_deadlock(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are read one after the other: what is not there twice may never have been."""
    seen = iter(range(1_000_000))
    monkeypatch.setattr(waiting, "edges", lambda waits: next(seen))
    with locks.hold("a"):
        assert locks.acquire("a", wait=0.1) is None
    monkeypatch.undo()
    with locks.hold("a"), pytest.raises(LockDeadlock):
        locks.acquire("a", wait=0.1)
