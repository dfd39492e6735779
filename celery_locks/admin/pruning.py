"""Remove entries that the store no longer needs, in steps short enough that nobody waits for them.

Processes that hold locks remove lapsed names in the background (``core/cleanup_job.py``). This also
works where none runs, and removes the rest: records of holders and waiters that are gone, names
without any, and index entries of completed work whose mark has expired. Notices to holders expire
by themselves.
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
        step: PruneStep = locks.run(commands.prune(root, part, cursor, dry_run=dry_run))
        total, cursor = total + step.entries, step.cursor
        if cursor == "0":
            return total
