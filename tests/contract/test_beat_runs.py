"""The last runs of a beat: each is claimed once, by the holder of the lock only."""

from typing import Any

import pytest

from celery_locks import Lease, Locks
from celery_locks.store.commands.beat import CHANGED, CLAIMED, NOT_HOLDER, BeatCommands, Runs

NAME = "beat:shop"


class Beat:
    """The commands of one beat process; ``token`` is that of its lease."""

    def __init__(self, locks: Locks, token: str) -> None:
        self._locks, self._token = locks, token
        self._commands = BeatCommands(locks.commands)

    def claim(self, entry: str, before: str, record: str) -> Any:
        call = self._commands.claim_run(NAME, self._token, entry, before, record)
        return self._locks.perform(call)

    def share(self, forget_before: int = 0, **missing: str) -> Runs:
        call = self._commands.share_runs(NAME, self._token, missing, forget_before)
        shared: Runs = self._locks.perform(call)
        return shared

    def read(self) -> Runs:
        runs: Runs = self._locks.perform(self._commands.share_runs(NAME))
        return runs


@pytest.fixture
def lease(locks: Locks) -> Lease:
    lease = locks.acquire(NAME)
    assert lease
    return lease


@pytest.fixture
def beat(locks: Locks, lease: Lease) -> Beat:
    return Beat(locks, lease.token)


def test_run_is_claimed_once(beat: Beat) -> None:
    assert beat.claim("a", "", "1 1 7") == CLAIMED
    assert beat.claim("a", "", "2 1 7") == CHANGED
    assert beat.claim("a", "1 1 7", "2 2 7") == CLAIMED
    assert beat.read() == Runs(False, {"a": "2 2 7"})


def test_repeated_claim_is_the_same_claim(locks: Locks, lease: Lease, beat: Beat) -> None:
    """Its reply was lost; perhaps the lock too, since then."""
    assert beat.claim("a", "", "1 1 7") == CLAIMED
    assert beat.claim("a", "", "1 1 7") == CLAIMED
    lease.release()
    assert beat.claim("a", "", "1 1 7") == CLAIMED


def test_claim_needs_the_lock(locks: Locks, lease: Lease, beat: Beat) -> None:
    """The beat was paused, and another is active."""
    lease.release()
    assert beat.claim("a", "", "1 1 7") == NOT_HOLDER
    assert locks.acquire(NAME)
    assert beat.claim("a", "", "1 1 7") == NOT_HOLDER
    assert beat.read().records == {}


def test_holder_adds_what_is_missing(beat: Beat) -> None:
    assert beat.share(a="1 0 0", b="2 0 0") == Runs(True, {"a": "1 0 0", "b": "2 0 0"})
    assert beat.share(a="9 0 0", c="3 0 0").records == {"a": "1 0 0", "b": "2 0 0", "c": "3 0 0"}


def test_old_records_of_other_entries_are_deleted(beat: Beat) -> None:
    beat.share(old="-5 1 1", old_too="10 1 1", young="20 1 1")
    assert beat.share(forget_before=15, old="-5 1 1").records == {
        "old": "-5 1 1",
        "young": "20 1 1",
    }


def test_others_only_read(locks: Locks, lease: Lease, beat: Beat) -> None:
    beat.share(a="1 0 0")
    other = Beat(locks, "another")
    assert other.share(forget_before=99, b="2 0 0") == Runs(False, {"a": "1 0 0"})
    assert other.read() == Runs(False, {"a": "1 0 0"})


def test_entry_of_any_spelling(beat: Beat) -> None:
    for entry in ("ünïcødé 锁", "new\nline\r\n", "x" * 500, "{a} 'b' \"c\""):
        assert beat.claim(entry, "", "1 1 7") == CLAIMED
        assert beat.read().records[entry] == "1 1 7"
