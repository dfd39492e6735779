"""However a task ends in a prefork child, its lock is free at once and the next one runs.

One test for each row of "What fires when a task ends". The next task stands in line for the lock
while the first runs, in another child, so its start is the moment the lock came free. The ttl is
30 s: nothing here can be the work of time.
"""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask
from tests.support.keys import key_alone
from tests.support.processes import is_alive
from tests.support.stage import AT_ONCE, Stage, new_key
from tests.support.waiting import wait_until
from tests.support.worker import Worker


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as one:
        yield one


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Iterator[Worker]:
    # Three that hold and three in line; and Celery gives back the slot of a dead child late.
    with stage.worker("prefork", 6) as one:
        yield one


@pytest.mark.parametrize(
    ("way", "state"),
    [
        ("succeed", "SUCCESS"),
        ("fail", "FAILURE"),
        ("unserialisable", "FAILURE"),
        ("ignore", "PENDING"),
        ("replace", "SUCCESS"),
        # Celery 5.7 makes it a failure, a moment later; older ones leave it at that.
        ("reject", "PENDING FAILURE"),
        ("retry", "SUCCESS"),
    ],
)
def test_lock_is_free_when_a_task_ends_by(
    stage: Stage, worker: Worker, way: str, state: str
) -> None:
    """The ways that the task itself chooses and its child survives."""
    key, first, following = stage.line_up("act", way)
    stage.journal.gate(key)
    stage.check_next_runs(key, following)
    wait_until(lambda: first.state in state.split(), 20, what=f"{state}, not {first.state}")


def test_lock_is_free_when_the_result_cannot_be_stored(stage: Stage, worker: Worker) -> None:
    """The lock is given back before the result is stored, so it does not matter."""
    key, _, following = stage.line_up("act_unstored")
    stage.journal.gate(key)
    stage.check_next_runs(key, following)


def test_lock_is_free_after_a_soft_time_limit(stage: Stage, worker: Worker) -> None:
    """An exception like any other, but raised by a signal."""
    key, first, following = stage.line_up("act", "hang", soft_time_limit=1)
    stage.journal.gate(key)
    stage.check_next_runs(key, following)
    assert "SoftTimeLimitExceeded" in repr(first.get(timeout=20, propagate=False))


@pytest.mark.parametrize("way", ["hang", "hang_on_for_ever"])
def test_lock_is_free_after_a_hard_time_limit_when_the_child_is_dead(
    stage: Stage, worker: Worker, way: str
) -> None:
    """Celery calls the task failed before it kills the child, which may write until then."""
    key, first, following = stage.line_up("act", way, time_limit=1)
    stage.journal.gate(key)
    stage.check_next_runs(key, following)
    assert "TimeLimitExceeded" in repr(first.get(timeout=20, propagate=False))


def _kill_holder(stage: Stage, key: str, first: Any) -> None:
    os.kill(stage.wait_held(key).holders[0].pid or 0, signal.SIGKILL)


def _terminate(name: str) -> Callable[[Stage, str, Any], None]:
    return lambda stage, key, first: first.revoke(terminate=True, signal=name)


@pytest.mark.parametrize(
    ("way", "strike"),
    [
        ("hang", _terminate("SIGTERM")),
        ("hang_on", _terminate("SIGTERM")),
        ("hang", _terminate("SIGKILL")),
        ("hang", _kill_holder),
        ("hang_on_for_ever", _kill_holder),
    ],
    ids=["revoke-TERM", "revoke-TERM-swallowed", "revoke-KILL", "kill-9", "kill-9-deaf"],
)
def test_lock_is_free_when_the_task_has_been_struck_down(
    stage: Stage, worker: Worker, way: str, strike: Callable[[Stage, str, Any], None]
) -> None:
    """Within a second of kill -9; and never while a task that swallowed the signal goes on."""
    key, first, following = stage.line_up("act", way)
    stage.journal.gate(key)
    stage.wait_wrote(key, "beat")
    strike(stage, key, first)
    stage.check_next_runs(key, following, within=1.0)
    deaf = way == "hang_on"
    assert stage.journal.wrote(key, "ends by itself") == deaf


def test_lock_is_not_taken_by_a_task_revoked_before_it_starts(stage: Stage, worker: Worker) -> None:
    """Nothing was taken, so nothing may be left; the same for one that expired."""
    key = new_key("revoked")
    revoked = f"id-{key}"
    stage.app.control.revoke(revoked, reply=True, timeout=10, limit=1)
    results = [
        stage.send("follow", key, task_id=revoked),
        stage.send("follow", key, expires=-1),
    ]
    for result in results:
        assert "TaskRevokedError" in repr(result.get(timeout=20, propagate=False))
    assert stage.journal.runs(key) == []
    stage.check_nothing_left()
    assert stage.send("follow", key).get(timeout=20) in worker.children


def test_lock_is_free_when_the_task_ends_its_child(stage: Stage, worker: Worker) -> None:
    """SystemExit, KeyboardInterrupt, and os._exit, the one without a ``finally``.

    All are lined up before the first one ends: Celery may give the next task to a dead child and
    notice after five seconds. For the same reason this comes last on this worker.
    """
    ways = ("exit_by_exception", "keyboard_interrupt", "exit_at_once")
    lines = [stage.line_up("act", way) for way in ways]
    for key, _, _ in lines:
        stage.journal.gate(key)
    for key, _, following in lines:
        stage.check_next_runs(key, following)


def test_lock_is_free_after_an_eager_failure_that_propagates(stage: Stage) -> None:
    """No worker, no ``after_return``: only the ``finally`` of the call."""
    app = Celery("eager", broker=stage.broker_url)
    app.conf.update(
        task_always_eager=True, task_eager_propagates=True, locks_url=stage.locks_url, locks_ttl=30
    )

    @app.task(base=LockedTask, lock_key=key_alone)
    def fail(key: str) -> None:
        assert stage.locks.is_locked(key)
        raise ValueError("as planned")

    key = new_key("eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="as planned"):
            fail.delay(key)
        assert not stage.locks.is_locked(key)
    stage.check_nothing_left()
    app.close()


def test_lock_of_a_worker_that_ran_out_of_memory_is_free() -> None:
    """Celery lets the whole worker exit then; the child gave the lock back before."""
    with Stage() as own, own.worker("prefork", 2) as worker:
        key, _, _ = own.line_up("act", "out_of_memory")
        own.journal.gate(key)
        worker.wait_end()
        own.wait_free(key)
        own.check_nothing_left()


def test_lock_lapses_when_the_whole_worker_is_killed() -> None:
    """All that is left then is the ttl: 3 s here, counted from the last renewal."""
    with Stage() as own, own.worker("prefork", 2) as worker:
        key = new_key("killed")
        own.send("work", key, "sleep", 60)
        own.wait_wrote(key, "start")
        children = worker.children
        worker.signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, children)), what="the children to die with it")
        assert own.locks.is_locked(key)
        lease = own.locks.acquire(key, ttl=3, wait=3.0 + AT_ONCE)
        assert lease
        lease.release()
        own.check_nothing_left()
