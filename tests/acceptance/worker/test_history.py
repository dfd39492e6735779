"""Holds of real tasks on record: those that ended by themselves and those whose process died."""

import os
import signal
import time

import pytest

from celery_locks import admin
from tests.support.stage import APP, Stage, new_key
from tests.support.waiting import wait_until


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_holds_of_tasks_are_on_record(pool: str) -> None:
    with Stage() as stage, stage.worker(pool, 1):
        short, long = new_key("short"), new_key("long")
        stage.send("work", short, "sleep", 0.0).get(timeout=30)
        result = stage.send("work", long, "sleep", 1.2)
        result.get(timeout=30)
        [act] = admin.history(stage.locks, long)
        assert (act.act, act.why, act.holders[0].task_id) == ("held", "", result.id)
        assert act.held_for
        assert 1.2 <= act.held_for < 30
        assert admin.usual(stage.locks)[f"{APP}.work"].held_for >= 1.2
        if pool == "prefork":
            check_killed(stage)
        stage.check_nothing_left()


def check_killed(stage: Stage) -> None:
    """The main process frees what the child had, and says so; it says nothing of the usual."""
    key, before = new_key("killed"), admin.usual(stage.locks)
    stage.send("work", key, "sleep", 60)
    holder = stage.wait_held(key).holders[0]
    # The child's own clock and the server's may differ by what the grant took.
    wait_until(lambda: time.time() - holder.acquired_at > 1.5, 10, what="a second to pass")
    assert holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    stage.wait_free(key, deadline=10.0)
    [act] = admin.history(stage.locks, key)
    assert (act.act, act.why) == ("held", f"process {holder.pid} died")
    assert act.holders[0].token == holder.token
    assert admin.usual(stage.locks) == before
