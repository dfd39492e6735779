"""The public names, pinned: adding one is a decision, losing one breaks somebody."""

import celery_locks

NAMES = {
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
}


def test_public_names_are_these() -> None:
    assert set(celery_locks.__all__) == NAMES
    assert list(celery_locks.__all__) == sorted(celery_locks.__all__)
    assert all(hasattr(celery_locks, name) for name in NAMES)
