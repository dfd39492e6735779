"""Work that is marked as completed (``once``), and the reset that allows it to run again."""

from __future__ import annotations

from collections.abc import Iterator

from celery_locks.admin.actions import current_operator
from celery_locks.core.locks import Locks
from celery_locks.recipes.idempotent import DoneWork, done_work, reset


def list_done(locks: Locks) -> Iterator[DoneWork]:
    """List the keys whose work is marked as completed (``once``)."""
    return done_work(locks)


def reset_done(locks: Locks, key: str, *, reason: str = "", by: str = "") -> bool:
    """Allow the work for a key to run again; True if it was marked. Recorded in the history."""
    return bool(reset(locks, key, by=by or current_operator(), reason=reason))
