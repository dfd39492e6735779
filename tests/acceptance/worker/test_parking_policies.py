"""Real workers: the newest waits, a duplicate joins the run, tenants take turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError

from celery_locks import AlreadyDone, admin
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.parking_rig import LONG
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker(concurrency=3):
        yield rig


@pytest.fixture
def key() -> str:
    return f"policy-{next(_numbers)}"


def call(task: Any, key: str, on_conflict: Any, *args: Any, **lock: Any) -> Any:
    return task.apply_async((key, *args), lock={"on_conflict": on_conflict, **lock})


def wait_parked(rig: Rig, key: str, count: int) -> None:
    rig.wait_event("parked", key, count)


def test_newest_waits_and_the_older_one_is_revoked(rig: Rig, key: str) -> None:
    work = rig.task("work")
    first = call(work, key, "keep_latest", key)
    rig.wait_started(first)
    second = call(work, key, "keep_latest")
    wait_parked(rig, key, 1)
    third = call(work, key, "keep_latest")
    with pytest.raises(TaskRevokedError, match=f"superseded by {third.id}"):
        second.get(timeout=PATIENCE)
    rig.open(key)
    assert [first.get(timeout=PATIENCE), third.get(timeout=PATIENCE)] == [key, key]
    assert not rig.starts(second.id)
    rig.never_two_at_once()


def test_duplicate_gets_the_result_of_the_run_and_its_canvas_continues(rig: Rig, key: str) -> None:
    work, echo, gather = rig.task("work"), rig.task("echo"), rig.task("gather")
    first = call(work, key, "join", key)
    rig.wait_started(first)
    joined = work.si(key).set(lock={"on_conflict": "join"})
    linked = chain(joined, echo.s()).delay()
    gathered = chord([joined.clone(), joined.clone()], gather.s()).delay()
    wait_parked(rig, key, 3)
    rig.open(key)
    assert linked.get(timeout=PATIENCE) == key
    assert gathered.get(timeout=PATIENCE) == [key, key]
    assert [entry["id"] for entry in rig.starts() if entry["lock"] == key] == [first.id]


@pytest.mark.parametrize("on_failure", ["run", "propagate"])
def test_joined_run_that_fails(rig: Rig, key: str, on_failure: str) -> None:
    """The next one runs and the others join it; or all of them fail."""
    fails = rig.task("fails")
    lock = {"on_join_failure": on_failure}
    first = call(fails, key, "join", key, **lock)
    rig.wait_started(first)
    joined = [call(fails, key, "join", key, **lock) for _ in range(2)]
    wait_parked(rig, key, 2)
    rig.open(key)
    with pytest.raises(ValueError):
        first.get(timeout=PATIENCE)
    for result in joined:
        with pytest.raises(AlreadyDone if on_failure == "propagate" else ValueError):
            result.get(timeout=PATIENCE)
    started = [result.id for result in joined if rig.starts(result.id)]
    assert len(started) == (0 if on_failure == "propagate" else 2)


def test_tenants_take_turns(rig: Rig, key: str) -> None:
    work = rig.task("work")
    first = call(work, key, "park", key)
    rig.wait_started(first)
    results = []
    for number in range(6):
        results.append(call(work, key, "park", f"{key}-a", fair_by="{gate}"))
        wait_parked(rig, key, number + 1)
    late = call(work, key, "park", f"{key}-b", fair_by="{gate}")
    wait_parked(rig, key, 7)
    for gate in (key, f"{key}-a", f"{key}-b"):
        rig.open(gate)
    ids = [result.id for result in (*results, late)]
    wait_until(
        lambda: len([e for e in rig.starts() if e["id"] in ids]) == 7, PATIENCE, what="all to start"
    )
    order = [entry["id"] for entry in rig.starts() if entry["id"] in ids]
    assert order.index(late.id) <= 1, "it waits no longer than if the other had one"
    assert [it for it in order if it != late.id] == [result.id for result in results]
    rig.never_two_at_once()


def displace(task: Any, key: str, gate: str | None = None, **lock: Any) -> Any:
    return call(task, key, "cancel_running", gate, ttl=3, **lock)


def test_new_task_stops_the_run_and_takes_its_place(rig: Rig, key: str) -> None:
    """Each is stopped by the next, until one may finish: then the newest waits for it."""
    work = rig.task("work")
    runs = [displace(work, key, f"{key}-nobody opens it", max_displacements=2)]
    rig.wait_started(runs[0])
    for _ in range(2):
        runs.append(displace(work, key, key, max_displacements=2))
        rig.wait_started(runs[-1])
        with pytest.raises(TaskRevokedError, match=f"superseded by {runs[-1].id}"):
            runs[-2].get(timeout=PATIENCE)
    last = displace(work, key, max_displacements=2)
    wait_parked(rig, key, 3)
    rig.open(key)
    assert [runs[-1].get(timeout=PATIENCE), last.get(timeout=PATIENCE)] == [key, key]
    rig.never_two_at_once()


def test_run_has_its_time_before_it_is_stopped(rig: Rig, key: str) -> None:
    """The new task is parked by then: a worker that looks at the lock asks the run to stop."""
    work = rig.task("work")
    first = displace(work, key, f"{key}-nobody opens it", displace_after=6)
    rig.wait_started(first)
    [run] = rig.locks.holders(key)
    second = displace(work, key, displace_after=6)
    with pytest.raises(TaskRevokedError, match=f"superseded by {second.id}"):
        first.get(timeout=LONG)
    assert second.get(timeout=PATIENCE) == key
    [asked] = [it for it in admin.history(rig.locks, name=key) if it.act == "stop"]
    assert asked.by == f"task {second.id}"
    assert asked.at >= run.acquired_at + 6, "it was asked to stop too early"
    rig.never_two_at_once()


def test_run_that_ends_in_its_time_has_its_result(rig: Rig, key: str) -> None:
    """So tasks that need less than that finish under any stream of new ones."""
    work = rig.task("work")
    first = displace(work, key, key, displace_after=3600)
    rig.wait_started(first)
    second = displace(work, key, displace_after=3600)
    wait_parked(rig, key, 1)
    rig.open(key)
    assert [first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)] == [key, key]
    assert not [it for it in admin.history(rig.locks, name=key) if it.act == "stop"]


def test_run_that_does_not_stop_is_terminated(rig: Rig, key: str) -> None:
    deaf = rig.task("deaf")
    first = displace(deaf, key, f"{key}-nobody opens it", cancel_grace=1)
    rig.wait_started(first)
    second = displace(rig.task("work"), key, cancel_grace=1)
    with pytest.raises(TaskRevokedError, match=f"superseded by {second.id}"):
        first.get(timeout=PATIENCE)
    assert second.get(timeout=PATIENCE) == key


def test_no_worker_runs_a_copy_of_a_terminated_run(rig: Rig, key: str) -> None:
    """Its worker may die before it acknowledges, and the message goes to another one."""
    with rig.worker("-n", "other@%h"):
        first = displace(rig.task("deaf"), key, f"{key}-nobody opens it", cancel_grace=1)
        rig.wait_started(first)
        second = displace(rig.task("work"), key, cancel_grace=1)
        with pytest.raises(TaskRevokedError, match=f"superseded by {second.id}"):
            first.get(timeout=PATIENCE)
        discarded = rig.app.control.inspect(timeout=2).revoked()
        assert len(discarded) == 2
        assert all(first.id in ids for ids in discarded.values()), discarded
