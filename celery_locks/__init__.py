"""celery-locks: the concurrency layer Celery never had.

The public names are imported on first use: pytest imports this package to find the plugin in it,
also where nobody uses locks, and must not load Celery and redis-py for that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_locks.core.aio import AsyncLocks
    from celery_locks.core.lease import AsyncLease, Lease, State
    from celery_locks.core.locks import Locks
    from celery_locks.errors import (
        AlreadyDone,
        AlreadyQueued,
        ForeignData,
        LeaseLost,
        LimitMismatch,
        LockConflict,
        LockDeadlock,
        LockError,
        LockRevoked,
        LockUnavailable,
        LockUsageError,
        ServerOutOfMemory,
        ServerReadOnly,
        ServerRefused,
        ServerTooOld,
        StopRequested,
        TaskLockAcquireError,
    )
    from celery_locks.events import LockEvent, subscribe
    from celery_locks.integration.current_execution import current_lease
    from celery_locks.integration.decorator import single_instance
    from celery_locks.integration.task import LockedTask
    from celery_locks.skipped import is_skipped, without_skipped
    from celery_locks.types import ActiveRun, Conflict, Holder, LockInfo

_MODULES = {
    "core.aio": ("AsyncLocks",),
    "errors": (
        "AlreadyDone",
        "AlreadyQueued",
        "ForeignData",
        "LeaseLost",
        "LimitMismatch",
        "LockConflict",
        "LockDeadlock",
        "LockError",
        "LockRevoked",
        "LockUnavailable",
        "LockUsageError",
        "ServerOutOfMemory",
        "ServerReadOnly",
        "ServerRefused",
        "ServerTooOld",
        "StopRequested",
        "TaskLockAcquireError",
    ),
    "events": ("LockEvent", "subscribe"),
    "integration.decorator": ("single_instance",),
    "integration.current_execution": ("current_lease",),
    "integration.task": ("LockedTask",),
    "core.lease": ("AsyncLease", "Lease", "State"),
    "core.locks": ("Locks",),
    "types": ("ActiveRun", "Conflict", "Holder", "LockInfo"),
    "skipped": ("is_skipped", "without_skipped"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ActiveRun",
    "AlreadyDone",
    "AlreadyQueued",
    "AsyncLease",
    "AsyncLocks",
    "Conflict",
    "ForeignData",
    "Holder",
    "Lease",
    "LeaseLost",
    "LimitMismatch",
    "LockConflict",
    "LockDeadlock",
    "LockError",
    "LockEvent",
    "LockInfo",
    "LockRevoked",
    "LockUnavailable",
    "LockUsageError",
    "LockedTask",
    "Locks",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "State",
    "StopRequested",
    "TaskLockAcquireError",
    "current_lease",
    "is_skipped",
    "single_instance",
    "subscribe",
    "without_skipped",
]
