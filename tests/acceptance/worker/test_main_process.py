"""The worker's main process stands still or dies while a child runs a locked task.

``docs/project/how-it-works.md`` promises what is tested here.
"""

from __future__ import annotations

import signal

from tests.support.celery_worker import PATIENCE, fresh_rig
from tests.support.processes import is_alive
from tests.support.waiting import wait_until


def test_child_renews_its_lock_while_the_main_process_stands_still() -> None:
    """In a debugger, or without memory: the child notices that nobody renews."""
    with fresh_rig() as rig, rig.worker(concurrency=1) as worker:
        result = rig.task("work").delay("stands", "stands")
        rig.wait_started(result)
        [holder] = rig.locks.holders("stands")
        worker.signal(signal.SIGSTOP)
        try:
            rig.wait_event("renewed", "stands", times=len(rig.events("renewed", "stands")) + 3)
            assert [it.token for it in rig.locks.holders("stands")] == [holder.token]
            rig.open("stands")
            rig.wait_free("stands")
        finally:
            worker.signal(signal.SIGCONT)
        assert result.get(timeout=PATIENCE) == "stands"
        assert not rig.events("lost", "stands")


def test_task_ends_with_its_main_process_and_the_lock_lapses() -> None:
    """A child that went on would run a task whose result nobody collects."""
    with fresh_rig() as rig, rig.worker(concurrency=1) as worker:
        result = rig.task("work").delay("dies", "dies")
        child = rig.wait_started(result)["pid"]
        worker.signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(child), PATIENCE, what="the child to end")
        rig.wait_free("dies")
