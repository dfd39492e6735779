"""Park messages as a run whose lock is busy does, without a worker."""

from __future__ import annotations

from celery_locks import Holder, Locks
from celery_locks.store.commands.locks import AcquireExtras, ParkRequest
from celery_locks.store.commands.replies import Parked
from celery_locks.types import LockSpec


def park(locks: Locks, name: str, task_id: str, *, task: str = "bill", message: str = "{}") -> int:
    """Park the message of a task whose lock is busy; return its position."""
    holder = Holder(task_id=task_id, task=task, retries=-1, host="h", pid=7)
    request = ParkRequest(holder, 1, 60.0, message, 100_000)
    call = locks.commands.acquire(
        LockSpec(name), f"run-{task_id}", holder._replace(retries=0), AcquireExtras(park=request)
    )
    answer = locks.perform(call)
    assert isinstance(answer, Parked), answer
    return answer.position
