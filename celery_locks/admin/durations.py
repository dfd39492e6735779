"""How long a task usually has its lock, by its past holds.

The store keeps the last 16 holds of each task, a shard: those of a second or more that ended by
their own release (``note_past`` in ``past.lua``). Shorter ones do not count.
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
    """The median of a task's past holds, in seconds, and how many they are."""

    held_for: float
    holds: int

    def as_dict(self) -> dict[str, Any]:
        return {"held_for": self.held_for, "holds": self.holds}


def usual(locks: Locks, tasks: Iterable[str] | None = None) -> dict[str, Usual]:
    """Task → how long it usually has its lock; of these tasks, or of every one that is known."""
    asked = None if tasks is None else sorted(set(tasks))
    if asked == []:
        return {}
    holds: dict[str, list[float]] = {}
    for root in locks.commands.roots:
        found: Mapping[str, list[float]] = locks.perform(
            AdminCommands(locks.commands).durations(root, asked or ())
        )
        for task, seconds in found.items():
            holds.setdefault(task, []).extend(seconds)
    return {task: Usual(median(seconds), len(seconds)) for task, seconds in holds.items()}


def usual_of(locks: Locks, lock: LockInfo) -> dict[str, Usual]:
    """Of the tasks that are at work under this lock."""
    return usual(locks, [one.task for one in lock.holders if one.task and is_at_work(one)])


def is_at_work(holder: Holder) -> bool:
    """Whether a task runs under it; what a task's code holds besides has no usual time."""
    return not (holder.is_kept or holder.is_queued or holder.nested)


def times(held_for: float, usual: Usual) -> str:
    """How many times as long as usual, for people."""
    factor = held_for / usual.held_for
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}"
