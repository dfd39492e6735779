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
    """Return the usual durations of the tasks that run under this lock."""
    return usual(locks, [h.task for h in lock.holders if h.task and is_at_work(h)])


def is_at_work(holder: Holder) -> bool:
    """Whether a task runs under this lock; other locks that its code holds have no usual time."""
    return not (holder.is_kept or holder.is_queued or holder.nested)
