"""The execution that is current in this context, and the task that holds outside of one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_locks.integration.internals import get_current_task
from celery_locks.types import Holder, this_process

if TYPE_CHECKING:
    from celery_locks.core.lease import Lease
    from celery_locks.integration.execution import Execution

current: ContextVar[Execution | None] = ContextVar("celery_locks_execution", default=None)
# Asking Celery takes longer than the rest of a hold before its call: only workers ask.
_is_worker = False


def current_lease() -> Lease | None:
    """Return the lease of the task that runs here; None outside, and if it runs unlocked."""
    execution = current.get()
    return execution.lease if execution else None


def current_execution() -> Execution | None:
    return current.get()


def find_plain_tasks(**_: Any) -> None:
    """In a worker, record holds of tasks without a lock as theirs too."""
    global _is_worker
    _is_worker = True


def current_task_holder() -> Holder | None:
    """Return the task whose code runs here, also in a thread started with its context."""
    if execution := current.get():
        task, request = execution.task, vars(execution).get("request")
    else:
        task = get_current_task() if _is_worker else None
        request = task.request if task else None
    if request is None or not request.id:
        return None
    return holder_of(task, request, nested=True)


def holder_of(task: Any, request: Any, **details: Any) -> Holder:
    """Describe the run of a request, in this process."""
    process = this_process()
    return Holder(
        task_id=request.id,
        task=task.name,
        retries=request.retries or 0,
        replaced=request.replaced_task_nesting or 0,
        worker=request.hostname,
        host=process.host,
        pid=process.pid,
        **details,
    )
