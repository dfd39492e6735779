"""The verbs of the metrics on every store: sums that are right, and locks counted as they are."""

from __future__ import annotations

import time

import pytest

from celery_locks import Holder, Locks
from celery_locks.metrics.collector import read_counts, read_tally
from celery_locks.model import LockSpec
from celery_locks.store import telemetry_verbs
from celery_locks.store.telemetry_verbs import Field, TelemetryVerbs
from celery_locks.store.verbs import queued_token
from tests.contract.places import Place

BILL = Field("acquired", "bill")


@pytest.fixture
def verbs(locks: Locks) -> TelemetryVerbs:
    return TelemetryVerbs(locks.verbs)


def test_counts_of_all_processes_are_summed(locks: Locks, verbs: TelemetryVerbs) -> None:
    odd = Field("conflicts", "tâche\tnoire", "skip")
    assert locks.perform(verbs.count("one", 1, [(BILL, 2), (odd, 1)])) is True
    assert locks.perform(verbs.count("two", 1, [(BILL, 3)])) is True
    assert read_counts(locks) == {BILL: 5, Field("conflicts", "tâche noire", "skip"): 1}


def test_batch_sent_again_counts_once(locks: Locks, verbs: TelemetryVerbs, place: Place) -> None:
    """A reply that got lost must not double a day's numbers."""
    batch = verbs.count("one", 1, [(BILL, 2)])
    assert locks.perform(batch) is True
    assert locks.perform(batch) is False
    assert locks.perform(verbs.count("one", 2, [(BILL, 1)])) is True
    assert read_counts(locks) == {BILL: 3}
    root = locks.verbs.roots[0]
    assert place.keys() == {"metrics", "metrics:one"}
    for key in ("metrics", "metrics:one"):
        assert place.raw.pttl(root + key) > 0


def test_counts_are_bounded(
    locks: Locks, verbs: TelemetryVerbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Task names that somebody makes up by the million do not fill the server."""
    monkeypatch.setattr(telemetry_verbs, "_MOST_FIELDS", 10)
    made_up = [(Field("acquired", f"task-{n}"), 1) for n in range(50)]
    locks.perform(verbs.count("one", 1, made_up))
    locks.perform(verbs.count("one", 2, made_up))
    counts = read_counts(locks)
    assert len(counts) == 11
    assert counts[Field("acquired", "(other)")] == 80
    assert sum(counts.values()) == 100


def test_counts_come_in_pages(locks: Locks, verbs: TelemetryVerbs) -> None:
    for batch in range(5):
        fields = [(Field("acquired", f"task-{batch}-{n}"), n) for n in range(500)]
        locks.perform(verbs.count("one", batch + 1, fields))
    counts = read_counts(locks)
    assert len(counts) == 2500
    assert counts[Field("acquired", "task-4-499")] == 499


def _last_renewed(place: Place, name: str, token: str, ago: float) -> None:
    """As if the holder had acquired it then and never renewed it, with a ttl of 30 s."""
    then = (time.time() - ago) * 1000
    records = place.key("records", name)
    fence, _, rest = place.raw.hget(records, token).split(b" ", 2)
    place.raw.hset(records, token, b"%b %d %b" % (fence, then, rest))
    place.raw.zadd(place.key("h:", name), {token: then + 30_000})


def test_tally_counts_who_is_there(locks: Locks, place: Place) -> None:
    """Each of the ways to stand in a lock's record, and nobody who is gone."""
    assert read_tally(locks) == (0, 0, 0.0, 0, 0)
    kept = locks.acquire("kept", at_least=60)
    assert kept
    kept.release()
    for n in range(300):
        locks.perform(locks.verbs.acquire(LockSpec(f"n{n}", 30), f"t{n}", Holder()))
    message = Holder(task_id="j", retries=-1)
    locks.perform(locks.verbs.acquire(LockSpec("place", 60), queued_token("j"), message))
    asking = locks.verbs.acquire(LockSpec("n0", 30), "waiter", Holder(), alive=60)
    locks.perform(asking)
    _last_renewed(place, "n1", "t1", ago=25)
    place.lapse("n2", "t2")
    tally = read_tally(locks)
    assert tally[:2] == (299, 1)
    assert 25 <= tally.oldest < 85
    assert tally[3:] == (1, 1)
