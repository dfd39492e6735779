"""A second lock in the body of a task, with a real worker: a busy one ends the run, and no more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain

from celery_locks import LockConflict, admin
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.waiting import wait_until

_numbers = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module", params=["prefork", "threads"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker(pool=request.param):
        yield rig


@pytest.fixture
def key(rig: Rig) -> Iterator[str]:
    yield f"key-{next(_numbers)}"
    wait_until(lambda: not list(admin.list_locks(rig.locks)), PATIENCE, what="no lock to be left")


def seen(rig: Rig, result: Any) -> list[tuple[str, int]]:
    entries = rig.journal(result.id)
    return [(it["what"], it["retries"]) for it in entries if it["what"] != "success"]


def test_requeue_ends_the_run_and_brings_the_message_back(rig: Rig, key: str) -> None:
    """The task's own lock is free meanwhile, and the retries are the user's, not ours."""
    inner = f"inner-{key}"
    with rig.locks.hold(inner):
        result = rig.task("inside").delay(key, inner)
        rig.wait_event("requeued", inner, times=2)
        with rig.locks.hold(key, wait=PATIENCE):
            assert result.state == "PENDING"
    assert result.get(timeout=PATIENCE) == [key, inner, 0]
    steps = seen(rig, result)
    assert steps[-3:] == [("begin", 0), ("start", 0), ("end", 0)]
    assert set(steps[:-2]) == {("begin", 0)}, "nothing in the body caught it"


def test_requeue_keeps_the_canvas(rig: Rig, key: str) -> None:
    inner = f"inner-{key}"
    inside, echo = rig.task("inside"), rig.task("echo")
    with rig.locks.hold(inner):
        result = chain(inside.s(key, inner), echo.s(), echo.s()).apply_async()
        rig.wait_event("requeued", inner)
    assert result.get(timeout=PATIENCE) == [key, inner, 0]


def test_wait_comes_first(rig: Rig, key: str) -> None:
    inner = f"inner-{key}"
    with rig.locks.hold(inner):
        result = rig.task("inside").delay(key, inner, wait=1)
        wait_until(lambda: rig.locks.info(inner).waiters, PATIENCE, what="it to wait")  # type: ignore[union-attr]
        rig.wait_event("requeued", inner)
    assert result.get(timeout=PATIENCE) == [key, inner, 0]


def test_skip_ends_the_run_with_the_result_of_a_skipped_task(rig: Rig, key: str) -> None:
    inner = f"inner-{key}"
    with rig.locks.hold(inner) as lease:
        result = rig.task("inside").delay(key, inner, "skip")
        answer = result.get(timeout=PATIENCE)
        assert (answer["skipped"], answer["lock"]) == (True, inner)
        assert answer["holder"]["fence"] == lease.fence
        last_try = rig.task("inside").s(f"{key}-2", inner, "skip").set(retries=1)
        with pytest.raises(LockConflict):  # its result would be the next link's argument
            chain(last_try, rig.task("echo").s()).apply_async().get(timeout=PATIENCE)
    assert seen(rig, result) == [("begin", 0)]


def test_raise_is_an_error_of_the_body(rig: Rig, key: str) -> None:
    inner = f"inner-{key}"
    with rig.locks.hold(inner):
        result = rig.task("inside").apply_async((key, inner, "raise"), retries=1)
        with pytest.raises(LockConflict):
            result.get(timeout=PATIENCE)
    assert seen(rig, result) == [("begin", 1), ("caught", 1)]


def test_message_with_a_queued_scope_stays_unique_while_it_comes_back(rig: Rig, key: str) -> None:
    """Its running lock becomes its reservation again, which the next run takes over."""
    inner, task = f"inner-{key}", rig.task("inside_queued")
    with rig.locks.hold(inner):
        result = task.delay(key, inner)
        rig.wait_event("requeued", inner)
        for _ in range(20):
            again = task.delay(key, inner)
            assert (again.id, again.deduplicated) == (result.id, True)
            assert not rig.locks.acquire(key), "the lock has no gap between the runs"
        rig.wait_event("requeued", inner, times=2)
    assert result.get(timeout=PATIENCE) == [key, inner, 0]
    assert len(rig.starts(result.id)) == 1


def test_revoke_releases_the_reservation_of_a_requeued_message(rig: Rig, key: str) -> None:
    inner, task = f"inner-{key}", rig.task("inside_queued")
    with rig.locks.hold(inner):
        result = task.delay(key, inner)
        rig.wait_event("requeued", inner)
        wait_until(lambda: task.pending(key, inner) == "queued", PATIENCE)
        result.revoke()
        rig.wait_free(key)


@pytest.mark.parametrize("name", ["inside_late", "inside_unlocked"])
def test_neither_at_least_nor_acks_late_nor_once_loses_the_message(
    rig: Rig, key: str, name: str
) -> None:
    """The run that ended left no mark that it has run, nor that its work has begun."""
    inner = f"inner-{key}"
    with rig.locks.hold(inner):
        result = rig.task(name).delay(key, inner)
        rig.wait_event("requeued", inner)
    assert result.get(timeout=PATIENCE)[1:] == [inner, 0]
    assert len(rig.starts(result.id)) == 1
