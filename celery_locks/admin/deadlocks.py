"""Sentences about the locks that a lock's holders wait for: chains of waits, and deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from celery_locks.core.deadlocks import find_cycle, read_waits
from celery_locks.core.locks import Locks
from celery_locks.types import Blocker, Holder, LockInfo

_SHOWN = 5


def about_waiting_holders(locks: Locks, lock: LockInfo) -> Iterator[str]:
    """Describe each holder that waits for another lock, and a deadlock if there is one."""
    for holder in [holder for holder in lock.holders if holder.owner][:_SHOWN]:
        waits = locks.run(read_waits(locks.commands, holder.owner))
        wait = waits.get(holder.owner)
        if wait is None:
            continue
        cycle = find_cycle(wait, waits, _is_owned_by(holder.owner))
        if cycle:
            yield _describe_deadlock(lock.name, holder, cycle)
            return
        yield f"Its holder, {holder}, waits for lock {wait.name!r}, held by {wait.holders[0]}."


def _is_owned_by(owner: str) -> Callable[[Holder], bool]:
    return lambda holder: holder.owner == owner


def _describe_deadlock(name: str, holder: Holder, cycle: tuple[Blocker, ...]) -> str:
    if len(cycle) == 1:
        return (
            f"Deadlock: {holder} holds lock {name!r} and waits for lock {cycle[0].name!r}, "
            "which it holds itself. Its code should pass reentrant=True, or acquire it only once."
        )
    steps = [f"{holder} holds lock {name!r} and waits for lock {cycle[0].name!r}"]
    for step, following in pairwise(cycle):
        steps.append(f"{step.holder} holds that and waits for lock {following.name!r}")
    return (
        f"Deadlock: {'; '.join(steps)}, which the first one holds. None of them can go on: release "
        "one of these locks by force, and acquire them in the same order everywhere."
    )
