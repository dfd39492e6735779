"""celery-locks: the concurrency layer Celery never had."""

from celery_locks.aio import AsyncLocks
from celery_locks.errors import (
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
from celery_locks.lease import AsyncLease, Lease, State
from celery_locks.locks import Locks
from celery_locks.model import Conflict, Holder, LockInfo

__all__ = [
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
    "Locks",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "State",
    "TaskLockAcquireError",
    "subscribe",
]
