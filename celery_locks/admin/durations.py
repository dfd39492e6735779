"""How long a task usually holds its lock, from its past holds.

The store keeps the last 16 holds of each task, per shard: those of a second or more that ended
with their own release (``note_past`` in ``past.lua``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from celery_locks.core.locks import Locks
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.types import Holder, LockInfo


@dataclass(frozen=True, slots=True)
class Usual:
    """The median of a task's past holds, in seconds, and the number of those holds."""

    held_for: float
    holds: int

    def as_dict(self) -> dict[str, Any]:
        return {"held_for": self.held_for, "holds": self.holds}


def usual(locks: Locks, tasks: Iterable[str] | None = None) -> dict[str, Usual]:
    """Return how long tasks usually hold their lock, by task; of ``tasks``, or of all known."""
    names = None if tasks is None else sorted(set(tasks))
    if names == []:
        return {}
    commands = AdminCommands(locks.commands)
    holds: dict[str, list[float]] = {}
    for root in locks.commands.roots:
        found: Mapping[str, list[float]] = locks.perform(commands.durations(root, names or ()))
        for task, seconds in found.items():
            holds.setdefault(task, []).extend(seconds)
    return {task: Usual(median(seconds), len(seconds)) for task, seconds in holds.items()}


def usual_of(locks: Locks, lock: LockInfo) -> dict[str, Usual]:
    """Return the usual durations of the tasks that run under this lock, or are parked for it."""
    holders = [holder for holder in lock.holders if is_at_work(holder)]
    parked = [waiter for waiter in lock.waiters if waiter.is_parked]
    return usual(locks, [it.task for it in (*holders, *parked) if it.task])


def is_at_work(holder: Holder) -> bool:
    """Whether a task runs under this lock; what its code or a leader holds has no usual time."""
    is_task = holder.task_id is not None and not holder.nested
    return is_task and not (holder.is_kept or holder.is_queued)
