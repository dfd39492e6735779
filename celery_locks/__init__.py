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
        LockConflict,
        LockDeadlock,
        LockError,
        LockRevoked,
        LockUnavailable,
        LockUsageError,
        RateLimited,
        ServerOutOfMemory,
        ServerReadOnly,
        ServerRefused,
        ServerTooOld,
        StopRequested,
        TaskLockAcquireError,
    )
    from celery_locks.events import LockEvent, subscribe
    from celery_locks.integration.current_execution import current_lease
    from celery_locks.integration.decorator import limited, rate_limited, single_instance
    from celery_locks.integration.leader import Leader, leader
    from celery_locks.integration.send_task import send_task
    from celery_locks.integration.task import LockedTask
    from celery_locks.skipped import is_skipped, without_skipped
    from celery_locks.types import ActiveRun, Conflict, Holder, LockInfo, RateInfo

_MODULES = {
    "core.aio": ("AsyncLocks",),
    "errors": (
        "AlreadyDone",
        "AlreadyQueued",
        "ForeignData",
        "LeaseLost",
        "LockConflict",
        "LockDeadlock",
        "LockError",
        "LockRevoked",
        "LockUnavailable",
        "LockUsageError",
        "RateLimited",
        "ServerOutOfMemory",
        "ServerReadOnly",
        "ServerRefused",
        "ServerTooOld",
        "StopRequested",
        "TaskLockAcquireError",
    ),
    "events": ("LockEvent", "subscribe"),
    "integration.decorator": ("limited", "rate_limited", "single_instance"),
    "integration.current_execution": ("current_lease",),
    "integration.leader": ("Leader", "leader"),
    "integration.send_task": ("send_task",),
    "integration.task": ("LockedTask",),
    "core.lease": ("AsyncLease", "Lease", "State"),
    "core.locks": ("Locks",),
    "types": ("ActiveRun", "Conflict", "Holder", "LockInfo", "RateInfo"),
    "skipped": ("is_skipped", "without_skipped"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    if name == "LockedTask":
        # Celery creates the tasks of ``base=LockedTask`` late, and never for ``app.send_task``.
        import_module(f"{__name__}.integration.signals").install()
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
    "Leader",
    "Lease",
    "LeaseLost",
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
    "RateInfo",
    "RateLimited",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "State",
    "StopRequested",
    "TaskLockAcquireError",
    "current_lease",
    "is_skipped",
    "leader",
    "limited",
    "rate_limited",
    "send_task",
    "single_instance",
    "subscribe",
    "without_skipped",
]
