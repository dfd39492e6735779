"""Tasks that hold a lock and wait for another: a deadlock ends in a second, and is named."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import LockDeadlock
from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until
from tests.support.worker import Worker

APP = "tests.support.deadlock_app"


@pytest.fixture(scope="module", params=["prefork", "threads", "gevent"])
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def stage(pool: str) -> Iterator[Stage]:
    with Stage() as stage, Worker(APP, pool=pool, concurrency=4, env=stage.env):
        yield stage


def send(stage: Stage, task: str, *args: Any, **kwargs: Any) -> Any:
    return stage.app.send_task(f"{APP}.{task}", args, kwargs)


def outcome(result: Any) -> Any:
    wait_until(result.ready, 30, what="the task's end")
    return result.result


def check_one_gave_way(stage: Stage, task: str) -> None:
    a, b = new_key("a"), new_key("b")
    results = {b: send(stage, task, a, b), a: send(stage, task, b, a)}
    outcomes = {wanted: outcome(result) for wanted, result in results.items()}
    [(wanted, deadlock)] = [it for it in outcomes.items() if isinstance(it[1], Exception)]
    assert isinstance(deadlock, LockDeadlock)
    assert "both" in outcomes.values()
    mine = next(name for name in results if name != wanted)
    assert [step.name for step in deadlock.cycle] == [wanted, mine]
    # Each of them by the task that holds it, and waits.
    assert [step.holder.task_id for step in deadlock.cycle] == [
        results[mine].id,
        results[wanted].id,
    ]
    assert f"[{results[mine].id}]" in str(deadlock)
    stage.check_nothing_left()


def test_two_tasks_that_want_each_others_lock(stage: Stage) -> None:
    """One of them fails at once and says with whom; the other one does its work."""
    check_one_gave_way(stage, "cross")


def test_two_tasks_that_want_each_others_lock_in_event_loops(stage: Stage, pool: str) -> None:
    """``asyncio.run`` in a task is how async code gets there: the loop blocks the task."""
    if pool == "gevent":
        return  # where asyncio runs one loop only
    check_one_gave_way(stage, "cross_async")


def test_task_that_applies_itself(stage: Stage) -> None:
    """It would wait for itself until a time limit ended it."""
    began = time.monotonic()
    error = outcome(send(stage, "inside_itself", new_key("own")))
    assert isinstance(error, LockDeadlock)
    assert "reentrant=True" in str(error)
    assert time.monotonic() - began < 20
    stage.check_nothing_left()


def test_task_that_holds_its_own_lock_again(stage: Stage) -> None:
    """Told at once, and done as the text says."""
    key = new_key("own")
    error = outcome(send(stage, "hold_own", key, wait=60))
    assert isinstance(error, LockDeadlock)
    assert "reentrant=True" in str(error)
    assert outcome(send(stage, "hold_own", key, wait=60, reentrant=True)) == "inside"
    assert outcome(send(stage, "hold_own", key, reentrant=True)) == "inside"
    stage.check_nothing_left()


@pytest.mark.parametrize("task", ["show", "show_plain"])
def test_what_a_tasks_code_holds_is_recorded_as_the_tasks(stage: Stage, task: str) -> None:
    """ "A process" tells nobody which of forty tasks it is."""
    own = (new_key("own"),) if task == "show" else ()
    result = send(stage, task, *own, new_key("inner"))
    holder = outcome(result)
    assert (holder["task_id"], holder["task"]) == (result.id, f"{APP}.{task}")
    assert holder["worker"]
    assert holder["pid"] == holder["own_pid"]
    assert holder["nested"] is True
