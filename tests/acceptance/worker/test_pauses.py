"""Real workers: a pause stops new runs, running ones finish; a limit may follow the arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from celery_locks import admin
from celery_locks.skipped import is_skipped
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker(concurrency=3):
        yield rig


@pytest.fixture
def key() -> str:
    return f"pause-{next(_numbers)}"


def test_pause_while_a_task_runs_stops_the_next_until_resume(rig: Rig, key: str) -> None:
    """The running task finishes, the waiting one starts only when the lock is resumed."""
    work = rig.task("work")
    first = work.delay(key, key)
    rig.wait_started(first)
    second = work.apply_async((key, key), lock={"wait": 60})
    wait_until(lambda: _waiters(rig, key) == 1, PATIENCE, what="the second to wait")
    admin.pause(rig.locks, key, reason="bad data", by="ops")
    rig.open(key)
    first.get(timeout=PATIENCE)
    rig.wait_free(key)
    third = work.delay(key)
    result = third.get(timeout=PATIENCE)
    assert is_skipped(result)
    assert (result["pause"]["by"], result["pause"]["why"]) == ("ops", "bad data")
    assert not rig.starts(second.id)
    assert _waiters(rig, key) == 1
    sentences = " ".join(admin.why(rig.locks, third.id, rig.app).sentences)
    assert "was skipped because lock" in sentences
    assert "paused by ops: bad data" in sentences
    admin.resume(rig.locks, key, by="ops")
    second.get(timeout=PATIENCE)
    assert rig.starts(second.id)
    rig.never_two_at_once()


def test_why_finds_a_requeued_task_on_its_worker(rig: Rig, key: str) -> None:
    """Its message has the id of the one before it, which Celery forgets when that one ends."""
    work = rig.task("work")
    first = work.delay(key, key)
    rig.wait_started(first)
    second = work.apply_async((key,), lock={"on_conflict": "requeue"})
    rig.wait_event("requeued", key)

    def is_scheduled() -> bool:
        sentences = " ".join(admin.why(rig.locks, second.id, rig.app).sentences)
        assert "has not acknowledged" not in sentences
        return f"Task {second.id} is scheduled on worker" in sentences

    wait_until(is_scheduled, PATIENCE, what="the worker to have the message")
    rig.open(key)
    second.get(timeout=PATIENCE)


def test_pattern_stops_a_name_that_was_never_used(rig: Rig, key: str) -> None:
    admin.pause(rig.locks, f"{key}*", reason="all of them", by="ops")
    work = rig.task("work")
    assert is_skipped(work.delay(f"{key}:never used").get(timeout=PATIENCE))
    requeued = work.apply_async((f"{key}:later",), lock={"on_conflict": "requeue"})
    rig.wait_event("requeued", f"{key}:later")
    admin.resume(rig.locks, f"{key}*")
    requeued.get(timeout=PATIENCE)
    assert rig.starts(requeued.id)


@pytest.mark.parametrize("task", ["queued", "both"])
def test_publishing_goes_on_while_the_lock_is_paused(rig: Rig, key: str, task: str) -> None:
    """A reservation is granted, so that a second call is recognised as a duplicate."""
    scope = {"queued": "queued", "both": "queued+running"}[task]
    lock = {"scope": scope, "on_conflict": {"run": "wait", "publish": "return_existing"}}
    admin.pause(rig.locks, f"{key}*", reason="stop", by="ops")
    work = rig.task("work")
    first = work.apply_async((key,), countdown=2, lock=lock)
    assert not first.deduplicated
    second = work.apply_async((key,), countdown=2, lock=lock)
    assert second.deduplicated
    wait_until(lambda: _waiters(rig, key) == 1, PATIENCE, what="the run to wait")
    assert not rig.starts(first.id)
    admin.resume(rig.locks, f"{key}*")
    first.get(timeout=PATIENCE)
    assert len(rig.starts(first.id)) == 1


def test_limit_of_a_task_may_be_a_function_of_its_arguments(rig: Rig, key: str) -> None:
    """It is called in the worker; its number is the one that the lock has."""
    slots = rig.task("slots")
    results = [slots.delay(f"{key}:2", key) for _ in range(2)]
    for result in results:
        rig.wait_started(result)
    assert is_skipped(slots.delay(f"{key}:2", key).get(timeout=PATIENCE))
    info = rig.locks.info(f"{key}:2")
    assert info
    assert (info.limit, len(info.holders)) == (2, 2)
    wrong = slots.delay(f"{key}:0")
    with pytest.raises(ValueError, match=r"task slots: the limit function .* returned 0"):
        wrong.get(timeout=PATIENCE)
    admin.set_limit(rig.locks, f"{key}:2", 3, reason="more", by="ops")
    third = slots.delay(f"{key}:2", key)
    rig.wait_started(third)
    rig.open(key)


def _waiters(rig: Rig, name: str) -> int:
    info = rig.locks.info(name)
    return len(info.waiters) if info else 0
