"""Remove entries that the store no longer needs, in steps short enough that nobody waits for them.

Each acquire removes some lapsed entries. This removes the rest, where nobody acquires any more:
records of holders and waiters that are gone, names without any, stop requests to holders that are
gone, and index entries of completed work whose mark has expired. Revocation notes expire by
themselves.
"""

from __future__ import annotations

from celery_locks.core.locks import Locks
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands, PruneStep


def trim(locks: Locks, *, dry_run: bool = False) -> int:
    """Remove entries that nobody can need any more; return how many were, or would be, removed."""
    roots = locks.commands.roots
    return sum(_trim_part(locks, root, part, dry_run) for root in roots for part in PRUNED_KEYS)


def _trim_part(locks: Locks, root: str, part: str, dry_run: bool) -> int:
    commands, total, cursor = AdminCommands(locks.commands), 0, "0"
    while True:
        step: PruneStep = locks.perform(commands.prune(root, part, cursor, dry_run=dry_run))
        total, cursor = total + step.entries, step.cursor
        if cursor == "0":
            return total
