"""Whether a call of a task is queued or running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from celery_locks.integration.app import locks_of
from celery_locks.integration.lock_name import lock_name
from celery_locks.options import LockOptions
from celery_locks.validation import QUEUED


def pending(
    task: Any, lock: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Literal["queued", "running"] | None:
    """Tell whether such a call is queued or running; None for an unlocked task."""
    name = lock_name(task, lock, args, kwargs) if lock.enabled else None
    if name is None:
        return None
    locks = locks_of(task.app)
    holders = locks.holders(name)
    # A lock that is kept after its end (at_least) belongs to no running call.
    if any(not (holder.is_queued or holder.is_kept) for holder in holders):
        return "running"
    if lock.scope == "queued":
        holders += locks.holders(name + QUEUED)
    return "queued" if any(holder.is_queued for holder in holders) else None
