"""Locks as plain functions, over one default ``Locks`` that ``configure`` sets.

    configure("redis://localhost:6379/0")
    if acquire_task_lock("task:42", timeout=300): ...

A lock that is acquired here is renewed while this process lives, so ``timeout`` is how long it
survives the process, not how long the work may take. Only the process that acquired it can release
and extend it; ``force_release_task_lock`` is for operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_locks import admin
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUsageError, TaskLockAcquireError
from celery_locks.forking import run_after_fork
from celery_locks.types import Conflict, Holder, LockInfo

__all__ = [
    "acquire_task_lock",
    "configure",
    "extend_task_lock",
    "force_release_task_lock",
    "get_lock_holder",
    "get_lock_info",
    "get_lock_ttl",
    "is_task_locked",
    "list_all_task_locks",
    "release_task_lock",
    "task_lock_context",
]

DEFAULT_TIMEOUT = 3600.0

_locks: Locks | None = None
_leases: dict[str, Lease] = {}
run_after_fork(_leases.clear, "surfaces")


def configure(server: str | Locks | Any, **layout: Any) -> Locks:
    """Set the lock server: a URL, a redis-py client, or a ``Locks``."""
    global _locks
    if isinstance(server, Locks):
        _locks = server
    elif isinstance(server, str):
        _locks = Locks.from_url(server, **layout)
    else:
        _locks = Locks(server, **layout)
    return _locks


def _default() -> Locks:
    if _locks is None:
        raise LockUsageError(
            "no lock server is set; call celery_locks.functions.configure(url) first"
        )
    return _locks


def acquire_task_lock(key: str, timeout: float = DEFAULT_TIMEOUT) -> bool:
    """Acquire the lock; return False if anybody holds it, this process included."""
    return not isinstance(_acquire(key, timeout), Conflict)


def _acquire(key: str, timeout: float) -> Lease | Conflict:
    lease = _default().try_acquire(key, ttl=timeout)
    if isinstance(lease, Lease):
        _leases[key] = lease
    return lease


def release_task_lock(key: str) -> bool:
    """Release a lock that this process acquired; return False if it has none, or had lost it."""
    lease = _leases.pop(key, None)
    return lease.release() if lease else False


def extend_task_lock(key: str, timeout: float = DEFAULT_TIMEOUT) -> bool:
    """Let the lock survive this process by ``timeout``; return False if it is not this process's.

    Raises ``LeaseLost`` if it was this process's and no longer is.
    """
    lease = _leases.get(key)
    if lease is None:
        return False
    lease.renew(timeout)
    return True


def is_task_locked(key: str) -> bool:
    return _default().is_locked(key)


def get_lock_holder(key: str) -> Holder | None:
    holders = _default().holders(key)
    return holders[0] if holders else None


def get_lock_ttl(key: str) -> float | None:
    """Return the seconds until the lock lapses if its holder dies now; None if nobody holds it."""
    info = _default().info(key)
    return info.remaining if info and info.holders else None


def get_lock_info(key: str) -> LockInfo | None:
    return _default().info(key)


def force_release_task_lock(key: str) -> bool:
    """Take the lock from its holders, as an operator; return True if it had any."""
    return bool(admin.force_release(_default(), key))


def list_all_task_locks() -> list[LockInfo]:
    return list(admin.list_locks(_default()))


@contextmanager
def task_lock_context(
    key: str, timeout: float = DEFAULT_TIMEOUT, raise_on_fail: bool = True
) -> Iterator[bool]:
    """Hold the lock while the block runs; busy raises ``TaskLockAcquireError`` or yields False."""
    lease = _acquire(key, timeout)
    if isinstance(lease, Conflict):
        if raise_on_fail:
            raise TaskLockAcquireError(lease)
        yield False
        return
    try:
        yield True
    finally:
        if _leases.get(key) is lease:
            release_task_lock(key)
