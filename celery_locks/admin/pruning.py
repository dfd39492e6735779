"""Clearing up what the store keeps beyond need, in steps so short that nobody waits for them.

Acquiring clears up by and by what lapsed; this is for what is left where nobody acquires any more:
records of holders and waiters that are gone, names without any, requests to stop to who is gone,
and the list of work that is no longer marked as done. Notes of revocation lapse by themselves.
"""

from __future__ import annotations

from celery_locks.core.locks import Locks
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands, PruneStep


def trim(locks: Locks, *, dry_run: bool = False) -> int:
    """How many entries were removed, or would be; none that anybody may still need."""
    roots = locks.commands.roots
    return sum(_trimmed(locks, root, part, dry_run) for root in roots for part in PRUNED_KEYS)


def _trimmed(locks: Locks, root: str, part: str, dry_run: bool) -> int:
    total, cursor = 0, "0"
    while True:
        step: PruneStep = locks.perform(
            AdminCommands(locks.commands).prune(root, part, cursor, dry_run=dry_run)
        )
        total, cursor = total + step.entries, step.cursor
        if cursor == "0":
            return total
