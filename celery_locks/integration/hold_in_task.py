"""A further lock in the body of a task, with a policy of tasks: ``self.locks.hold(…)``.

A busy lock ends the run by an ``EndRun``, which leaves the body like any error: the locks of outer
blocks and of the task itself are released on the way. The task's ``Execution`` catches it always.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, get_args

from celery_locks.errors import LockConflict, LockDeadlock, LockUsageError
from celery_locks.integration.current_execution import current
from celery_locks.types import Conflict

if TYPE_CHECKING:
    from celery_locks.core.lease import Lease
    from celery_locks.integration.execution import Execution
    from celery_locks.integration.headers import LockHeader
    from celery_locks.policy import Decision

OnHoldConflict = Literal["raise", "requeue", "skip"]


class EndRun(BaseException):
    """Ends the run of a task whose body finds another lock busy.

    Not an ``Exception``: it is no failure of the work, so neither an ``except Exception`` in the
    body nor Celery's ``autoretry_for`` may catch it. ``header`` is that of the requeued message.
    """

    header: LockHeader | None = None

    def __init__(self, execution: Execution, conflict: Conflict, decision: Decision) -> None:
        super().__init__(f"the run ends: {conflict}")
        self.execution = execution
        self.conflict = conflict
        self.decision = decision


class HoldInTask:
    """A ``hold`` that ends the run of the current task if others hold the lock."""

    def __init__(self, hold: AbstractContextManager[Any], on_conflict: OnHoldConflict) -> None:
        self._hold = hold
        self._on_conflict = on_conflict
        self._execution = _current_run(on_conflict)

    def __enter__(self) -> Lease:
        try:
            lease: Lease = self._hold.__enter__()
            return lease
        except LockDeadlock:
            raise  # trying later would not help
        except LockConflict as error:
            end = self._execution.end_run(error.conflict, self._on_conflict)
            if end is None:
                raise
            raise end from None

    def __exit__(self, *error: Any) -> bool | None:
        return self._hold.__exit__(*error)


def check_hold_options(on_conflict: object, required: object) -> None:
    """Refuse an unknown policy, and one that ``required=False`` leaves without effect."""
    if on_conflict not in get_args(OnHoldConflict):
        allowed = " or ".join(map(repr, get_args(OnHoldConflict)))
        raise LockUsageError(f"on_conflict of hold is {on_conflict!r}; write {allowed}")
    if on_conflict != "raise" and not required:
        raise LockUsageError(
            f"on_conflict={on_conflict!r} has no effect with required=False; leave one of them out"
        )


def _current_run(on_conflict: str) -> Execution:
    execution = current.get()
    # A thread with the context of a run may outlive the run, which then has no request.
    if execution is None or "request" not in vars(execution):
        raise LockUsageError(
            f"hold(on_conflict={on_conflict!r}) ends the run of a locked task, and none runs here; "
            "leave it out and handle LockConflict"
        )
    return execution
