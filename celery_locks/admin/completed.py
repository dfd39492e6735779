"""Work that is marked as done (``once``), and letting it be done again."""

from __future__ import annotations

from collections.abc import Iterator

from celery_locks.admin.actions import current_operator
from celery_locks.core.locks import Locks
from celery_locks.recipes.idempotent import DoneWork, done_work, reset


def list_done(locks: Locks) -> Iterator[DoneWork]:
    """The keys whose work is marked as done (``once``)."""
    return done_work(locks)


def reset_done(locks: Locks, key: str, *, reason: str = "", by: str = "") -> bool:
    """Let the work for a key be done again; True if it was marked. ``history`` says who and why."""
    return bool(reset(locks, key, by=by or current_operator(), reason=reason))
