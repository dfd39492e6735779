"""celery-locks: the concurrency layer Celery never had."""

from celery_locks.aio import AsyncLocks
from celery_locks.errors import (
    AlreadyQueued,
    ForeignData,
    LeaseLost,
    LimitMismatch,
    LockConflict,
    LockError,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
    TaskLockAcquireError,
)
from celery_locks.events import LockEvent, subscribe
from celery_locks.integration.decorator import single_instance
from celery_locks.integration.execution import current_lease
from celery_locks.integration.task import LockedTask
from celery_locks.lease import AsyncLease, Lease, State
from celery_locks.locks import Locks
from celery_locks.model import Conflict, Holder, LockInfo

__all__ = [
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
    "LockError",
    "LockEvent",
    "LockInfo",
    "LockUnavailable",
    "LockUsageError",
    "LockedTask",
    "Locks",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "State",
    "TaskLockAcquireError",
    "current_lease",
    "single_instance",
    "subscribe",
]
