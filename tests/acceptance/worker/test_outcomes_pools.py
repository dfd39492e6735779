"""However a task ends on the other pools, its lock is free at once and the next one runs.

The rows of "What fires when a task ends" that exist there: nothing can be killed but the whole
worker, time limits exist on gevent only (hard), and revoking a running task on the green pools.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.stage import Stage, new_key
from tests.support.worker import Worker

POOLS = ("threads", "gevent", "eventlet")
WAYS = (
    *("succeed", "fail", "unserialisable", "ignore", "replace", "reject", "retry"),
    *("exit_by_exception", "keyboard_interrupt", "out_of_memory"),
)


class Pool:
    """A worker of one pool, and its stage."""

    def __init__(self, name: str, stage: Stage, worker: Worker) -> None:
        self.name, self.stage, self.worker = name, stage, worker


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Stage() as stage, stage.worker(request.param, 4) as worker:
        yield Pool(request.param, stage, worker)


@pytest.fixture(scope="module")
def solo() -> Iterator[Stage]:
    with Stage() as stage, stage.worker("solo", 1):
        yield stage


@pytest.mark.parametrize("way", WAYS)
def test_lock_is_free_when_a_task_ends_by(pool: Pool, way: str) -> None:
    """As on prefork, in one process."""
    key, _, following = pool.stage.line_up("act", way)
    pool.stage.journal.gate(key)
    pool.stage.check_next_runs(key, following)


def test_lock_is_free_when_the_result_cannot_be_stored(pool: Pool) -> None:
    key, _, following = pool.stage.line_up("act_unstored")
    pool.stage.journal.gate(key)
    pool.stage.check_next_runs(key, following)


def test_lock_is_free_when_a_running_task_is_revoked(pool: Pool) -> None:
    """The green pools throw GreenletExit into it; a thread cannot be ended."""
    if pool.name == "threads":
        pytest.skip("The threads pool has no way to terminate a task.")
    key, first, following = pool.stage.line_up("act", "hang")
    pool.stage.journal.gate(key)
    pool.stage.wait_wrote(key, "beat")
    first.revoke(terminate=True)
    pool.stage.check_next_runs(key, following)


def test_lock_is_free_after_a_hard_time_limit(pool: Pool) -> None:
    """gevent raises its Timeout in the greenlet; threads and eventlet ignore the limit."""
    if pool.name != "gevent":
        pytest.skip(f"The {pool.name} pool knows no time limits.")
    key, _, following = pool.stage.line_up("act", "hang", time_limit=1)
    pool.stage.journal.gate(key)
    pool.stage.check_next_runs(key, following)


def test_lock_is_not_taken_by_a_task_that_expired(pool: Pool) -> None:
    key = new_key("expired")
    result = pool.stage.send("follow", key, expires=-1)
    assert "TaskRevokedError" in repr(result.get(timeout=20, propagate=False))
    assert pool.stage.journal.runs(key) == []
    pool.stage.check_nothing_left()


def test_many_tasks_at_once_take_their_locks(pool: Pool) -> None:
    """All of them wake one background thread; on the green pools without a switch in between."""
    for result in [pool.stage.send("noop") for _ in range(60)]:
        result.get(timeout=20)
    pool.stage.check_nothing_left()


def queue_two(stage: Stage, task: str, *args: Any) -> tuple[str, Any, Any]:
    """In one process and thread nobody can stand in line: the next one is in the broker's queue."""
    key = new_key("-".join(("lock", *map(str, args))))
    first = stage.send(task, key, *args)
    stage.wait_wrote(key, "start")
    return key, first, stage.send("follow", key)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in WAYS[-3:]])
def test_solo_lock_is_free_when_a_task_ends_by(solo: Stage, way: str) -> None:
    key, _, following = queue_two(solo, "act", way)
    solo.journal.gate(key)
    solo.check_next_runs(key, following)


@pytest.mark.parametrize("way", WAYS[-3:])
def test_solo_lock_is_free_when_a_task_ends_its_worker(way: str) -> None:
    """On solo the task's process is the worker: SystemExit and KeyboardInterrupt end it."""
    with Stage() as stage, stage.worker("solo", 1) as worker:
        key = new_key(way)
        stage.send("act", key, way)
        stage.wait_wrote(key, "start")
        stage.journal.gate(key)
        worker.wait_end()
        stage.wait_free(key)
        stage.check_nothing_left()
