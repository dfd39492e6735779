"""Retries, with real workers: an attempt is never in conflict with the one before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import celery
import pytest
from celery.exceptions import MaxRetriesExceededError

from celery_locks import LockConflict
from tests.support.celery_app import Passing
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.waiting import wait_until

_numbers = itertools.count()
CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])


@pytest.fixture(scope="module", params=["prefork", "threads"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker(pool=request.param):
        rig.pool = request.param  # type: ignore[attr-defined]
        yield rig


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def test_200_immediate_retries_are_never_skipped(rig: Rig, key: str) -> None:
    """``self.retry`` publishes before it raises: the next attempt may come while we hold."""
    results = [rig.task("again").delay(f"{key}-{n}") for n in range(200)]
    assert [result.get(timeout=PATIENCE) for result in results] == [1] * 200
    assert not [entry for entry in rig.starts() if entry["lock"] is None]
    requeued = [event["name"] for event in rig.all_events("requeued")]
    assert not [name for name in requeued if name.startswith(key)], "it takes the lock over at once"


def test_three_retries_on_one_lock_run_one_after_another(rig: Rig, key: str) -> None:
    """Each attempt takes over from the one before, with a higher fence."""
    result = rig.task("again").delay(key, times=3)
    assert result.get(timeout=PATIENCE) == 3
    fences = [entry["fence"] for entry in rig.starts(result.id)]
    assert fences == sorted(set(fences))
    rig.wait_free(key)


def test_autoretry_gets_its_lock_again(rig: Rig, key: str) -> None:
    """An exception turned into a retry by Celery's wrapper is a retry like any other."""
    result = rig.task("auto").delay(key)
    assert result.get(timeout=PATIENCE) == 1
    assert len(rig.starts(result.id)) == 2
    rig.wait_free(key)


def test_attempts_end_with_max_retries(rig: Rig, key: str) -> None:
    """The lock adds no attempts and takes none away."""
    automatic = rig.task("auto").delay(key, times=9)
    with pytest.raises(Passing, match="attempt 2"):
        automatic.get(timeout=PATIENCE)
    by_hand = rig.task("again").delay(key, times=9)
    with pytest.raises(MaxRetriesExceededError):
        by_hand.get(timeout=PATIENCE)
    assert len(rig.starts(automatic.id)) == 3
    assert len(rig.starts(by_hand.id)) == 4
    rig.wait_free(key)


def test_conflicts_before_a_retry_do_not_count_as_attempts(rig: Rig, key: str) -> None:
    """Requeued first, retried then: patience and retries are two things."""
    with rig.locks.hold(key):
        result = rig.task("again").apply_async([key], lock={"on_conflict": "requeue", "wait": 60})
        rig.wait_event("requeued", key)
    assert result.get(timeout=PATIENCE) == 1
    assert [entry["retries"] for entry in rig.starts(result.id)] == [0, 1]


def _in_the_gap(rig: Rig, key: str, on_retry: str) -> tuple[Any, Any]:
    """A task between two attempts, and another call of it for the same lock."""
    first = rig.task("again").apply_async([key, 1, 2.5], lock={"on_retry": on_retry, "ttl": 2})
    wait_until(lambda: first.state == "RETRY", PATIENCE, what="the first attempt to end")
    rig.wait_event("released", key)
    return first, rig.task("work").apply_async([key], lock={"on_conflict": "raise", "ttl": 2})


def test_a_kept_lock_refuses_others_between_attempts(rig: Rig, key: str) -> None:
    """``on_retry="keep"``: nobody comes between two attempts, and the second one takes it over."""
    first, other = _in_the_gap(rig, key, "keep")
    with pytest.raises(LockConflict) as raised:
        other.get(timeout=PATIENCE)
    assert raised.value.holder.task_id == first.id  # type: ignore[union-attr]
    assert first.get(timeout=PATIENCE) == 1
    rig.wait_free(key)


def test_a_released_lock_admits_others_between_attempts(rig: Rig, key: str) -> None:
    """``on_retry="release"``, the default."""
    first, other = _in_the_gap(rig, key, "release")
    assert other.get(timeout=PATIENCE) == key
    assert first.get(timeout=PATIENCE) == 1
    order = [(entry["task"], entry["retries"]) for entry in rig.starts() if entry["lock"] == key]
    assert order == [("again", 0), ("work", 0), ("again", 1)]


def test_a_revoke_between_attempts_frees_a_kept_lock(rig: Rig, key: str) -> None:
    """At once, not when the delay and a ttl are over: the next attempt will never come."""
    first = rig.task("again").apply_async([key, 1, 600], lock={"on_retry": "keep"})
    wait_until(lambda: first.state == "RETRY", PATIENCE, what="the first attempt to end")
    wait_until(
        lambda: [holder.is_queued for holder in rig.locks.holders(key)] == [True],
        PATIENCE,
        what="the lock to be the next attempt's",
    )
    first.revoke()
    rig.wait_free(key)


def test_a_kept_lock_lapses_when_the_next_attempt_never_comes(rig: Rig, key: str) -> None:
    """Revoked between two attempts: the lock is free after the delay and a ttl, not never."""
    first = rig.task("again").apply_async([key, 1, 0.5], lock={"on_retry": "keep", "ttl": 1})
    rig.app.control.revoke(first.id)
    wait_until(lambda: first.state in ("REVOKED", "RETRY"), PATIENCE, what="it to be on its way")
    rig.wait_free(key)


def test_a_retry_that_does_not_raise_is_not_skipped(rig: Rig, key: str) -> None:
    """``retry(throw=False)`` lets the body go on; the next attempt runs all the same."""
    result = rig.task("again").apply_async([key], {"throw": False})
    rig.wait_started(result, times=2)
    assert [entry["retries"] for entry in rig.starts(result.id)] == [0, 1]
    rig.wait_free(key)


@pytest.mark.parametrize("countdown", [None, 0.2])
def test_a_task_may_replace_itself(rig: Rig, countdown: float | None) -> None:
    """The replacement has the same id and no retries: it is not a copy of what it replaces."""
    result = rig.task("replaces").delay(countdown, 2)
    assert result.get(timeout=PATIENCE) == "replaced"
    assert len(rig.starts(result.id)) == 3


@pytest.mark.skipif(CELERY < (5, 7), reason="retry_on_worker_lost came with Celery 5.7.")
def test_a_lost_process_is_retried_under_the_lock(rig: Rig, key: str) -> None:
    """Celery retries for the child that died; the lock of the dead one is not in the way."""
    if rig.pool != "prefork":  # type: ignore[attr-defined]
        pytest.skip("Only prefork has processes to lose.")
    result = rig.task("dies").delay(key)
    assert result.get(timeout=PATIENCE) == 1
    assert [entry["retries"] for entry in rig.starts(result.id)] == [0, 1]
    rig.wait_free(key)
