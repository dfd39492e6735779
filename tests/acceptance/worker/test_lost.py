"""A lease that is lost while its task runs: the task is told, before it writes, and only it."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import LeaseLost, LockRevoked, admin
from tests.servers.embedded import EmbeddedServer
from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until
from tests.support.worker import Worker

TTL = 2.0
# It is noticed at the next renewal, a third of the ttl at most, or by the task's own timer.
NOTICED = TTL + 1.0
RAISED_IN = ("prefork", "solo", "threads", "gevent")


class Pool:
    """A worker of one pool, and its stage."""

    def __init__(self, name: str, stage: Stage, worker: Worker) -> None:
        self.name, self.stage, self.worker = name, stage, worker


@pytest.fixture(scope="module", params=[*RAISED_IN, "eventlet"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Stage() as stage, stage.worker(request.param, 8) as worker:
        yield Pool(request.param, stage, worker)


def start(stage: Stage, task: str, seconds: float) -> tuple[str, Any]:
    key = new_key(task)
    result = stage.send(task, key, seconds)
    stage.wait_wrote(key, "start")
    return key, result


def check_lost(stage: Stage, key: str, result: Any, kind: type[LeaseLost] = LeaseLost) -> None:
    wait_until(lambda: result.state == "FAILURE", NOTICED, what=f"{kind.__name__} in the task")
    assert type(result.result) is kind
    assert key in str(result.result)
    assert not stage.journal.wrote(key, "written after the sleep")


def test_lost_lease_is_raised_in_the_running_task(pool: Pool) -> None:
    """An operator took it. On eventlet, where nothing can be raised, check() tells."""
    task = "look_after_it" if pool.name == "eventlet" else "lose"
    key, result = start(pool.stage, task, 20)
    assert admin.force_release(pool.stage.locks, key, by="ann", reason="it hung")
    check_lost(pool.stage, key, result, LockRevoked)
    assert (result.result.by, result.result.why) == ("ann", "it hung")
    pool.stage.check_nothing_left()


def test_task_can_catch_that_it_was_revoked(pool: Pool) -> None:
    """Also where the error is made by the interpreter, which takes a class only."""
    if pool.name == "eventlet":
        pytest.skip("Nothing can be raised in a greenthread.")
    key, result = start(pool.stage, "give_in", 20)
    assert admin.force_release(pool.stage.locks, key, by="ann", reason="it hung")
    assert result.get(timeout=20) == "ann said it hung"


def test_revoked_before_the_first_renewal_is_heard_at_a_third_of_the_ttl() -> None:
    """The main process looks the token up then; the child alone would ask at two thirds."""
    with Stage() as stage, stage.worker("prefork", 1):
        key, result = start(stage, "lose_early", 60)
        holder = stage.wait_held(key).holders[0]
        assert admin.force_release(stage.locks, key)
        wait_until(lambda: result.state == "FAILURE", 30, what="LockRevoked in the task")
        assert type(result.result) is LockRevoked
        assert time.time() - holder.acquired_at < holder.ttl * 0.6


def test_lost_lease_only_warns_when_told_to(pool: Pool) -> None:
    """The task goes on; its lease says that it is lost and the log does too."""
    key, result = start(pool.stage, "lose_quietly", 1.6)
    assert admin.force_release(pool.stage.locks, key)
    assert result.get(timeout=20) == "lost"
    assert pool.stage.journal.wrote(key, "written after the sleep")
    assert f"the lease on lock '{key}' is lost: revoked by" in pool.worker.log()


def test_lost_lease_is_raised_after_a_direct_call_of_another_locked_task(pool: Pool) -> None:
    """The inner call must not disarm the outer one."""
    if pool.name == "eventlet":
        pytest.skip("Nothing can be raised in a greenthread.")
    key = new_key("nested")
    result = pool.stage.send("call_another", key)
    pool.stage.wait_wrote(key, "start")
    assert admin.force_release(pool.stage.locks, f"outer:{key}")
    wait_until(lambda: result.state == "FAILURE", NOTICED, what="LeaseLost in the outer task")
    assert f"outer:{key}" in str(result.result)


ROUNDS = {"prefork": 10, "threads": 8, "gevent": 4, "solo": 1}


def test_loss_is_never_raised_in_the_next_task(pool: Pool) -> None:
    """Tasks that end in the very moment when they are told; the child's next one is untouched."""
    if pool.name == "eventlet":
        pytest.skip("Nothing can be raised in a greenthread.")
    stage, worker = pool.stage, pool.worker
    children = set(worker.children)
    late = itertools.cycle(step * 0.0005 for step in range(-6, 10))
    results = []
    for _ in range(ROUNDS[pool.name]):
        races = [stage.send("race", new_key("race"), next(late), n > 3) for n in range(8)]
        canaries = [stage.send("noop") for _ in range(8)]
        for canary in canaries:
            canary.get(timeout=30)
        results += [race.get(timeout=30, propagate=False) for race in races]
    lost = [result for result in results if isinstance(result, LeaseLost)]
    print(f"{pool.name}: {len(lost)} of {len(results)} heard of it in time")
    assert [result for result in results if result not in lost and result != "ended"] == []
    if pool.name == "prefork":
        assert 0 < len(lost) < len(results), "always the same: the race is no race"
    assert set(worker.children) == children
    unexpected = [line for line in worker.log().splitlines() if "raised unexpected" in line]
    assert all(".noop[" not in line for line in unexpected), unexpected
    stage.check_nothing_left()


@pytest.mark.parametrize("name", ["prefork", "solo"])
def test_frozen_worker_does_not_write_after_its_lease(name: str) -> None:
    """The kernel's timer interrupts the task before its next line, when it is let go on.

    Its sleep is over long before that: without the timer it would write at once.
    """
    with Stage() as stage, stage.worker(name, 1) as worker:
        key, result = start(stage, "lose", 1.0)
        worker.signal_group(signal.SIGSTOP)
        other = stage.locks.acquire(key, wait=TTL + 5)
        assert other
        worker.signal_group(signal.SIGCONT)
        check_lost(stage, key, result)
        other.check()
        assert [holder.token for holder in stage.locks.holders(key)] == [other.token]
        other.release()
        stage.check_nothing_left()


def test_lock_is_free_after_kill_9_of_a_child_that_was_renewed_for() -> None:
    """What the main process renews it must stop renewing, and give back."""
    with Stage() as stage, stage.worker("prefork", 1):
        key = new_key("renewed")
        stage.send("work", key, "sleep", 60)
        first = stage.wait_held(key).holders[0]
        wait_until(lambda: stage.wait_held(key).holders[0].expires_at > first.expires_at + 0.5)
        os.kill(first.pid or 0, signal.SIGKILL)
        stage.wait_free(key, deadline=1.0)
        stage.check_nothing_left()


def test_lock_of_a_killed_child_is_free_once_the_lock_server_is_back() -> None:
    """Nobody could ask then what the child had held; it is asked later, not forgotten."""
    with EmbeddedServer() as locks, Stage(locks_on=locks) as stage:
        with stage.worker("prefork", 1) as worker:
            key = new_key("away")
            stage.send("act", key, "hang")
            holder = stage.wait_held(key).holders[0]
            locks.pause()
            os.kill(holder.pid or 0, signal.SIGKILL)
            wait_until(lambda: "not known yet" in worker.log(), 20, what="the supervisor to try")
            locks.resume()
            stage.wait_free(key, deadline=5.0)
            stage.check_nothing_left()
