"""Whether anybody can notice the end of a run and try its lock at once.

If so, the run waits until the server has released the lock. Else the release is only sent, and its
reply is read later (``core/pending_releases.py``). What that saves is measured by
``benchmarks/late_replies.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend

from celery_locks.integration.interrupt.gevent import is_green

if TYPE_CHECKING:
    from celery_locks.integration.execution import Execution


def ends_unnoticed(run: Execution) -> bool:
    """Return True if nothing follows a successful run that tells others that it has ended.

    A result, a following task, a caller, a handler in the task's class and messages that wait for
    its end do. A receiver of Celery's signals does not count: what it sends comes after the
    release. Greenlets always wait: no other thread can read from their connections.
    """
    request = run.request
    return (
        not (request.callbacks or request.chain or request.chord)
        and (request.ignore_result or _has_no_backend(run.task))
        and not (run.outer or request.called_directly or request.is_eager)
        and not (run.once or run.join or run.options.parks)
        and not (run.task._lock_handles_end or is_green())
    )


def _has_no_backend(task: Any) -> bool:
    """Return True if the task has no result backend. Cached: looking it up takes long."""
    known: bool | None = vars(task).get("_lock_has_no_backend")
    if known is None:
        known = task._lock_has_no_backend = isinstance(task.backend, DisabledBackend)
    return known
