"""Deadlocks: who waits for whom, read from the store. No I/O; ``waiting.py`` calls and raises.

A wait is a deadlock when every holder that it depends on is blocked: each holder of the lock waits
for another lock whose holders wait in turn, and one of them waits for a lock of the caller. If the
holders share the lock, one of them that is blocked is enough: a waiter needs all of them to end. A
waiter behind one for several locks waits for that one, which is listed in place of the holders. A
holder whose owner is unknown, or that does not wait, is not blocked. Only an owner that holds a
lock while it waits can be part of a deadlock, so nobody else pays for the check.

The locks may be in several shards, which cannot be read at one moment. So they are read twice: an
owner that waits cannot release anything, so waits and holds that are there both times, with the
same tokens, existed together in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from celery_locks.core.lease import whole_token
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.commands.replies import Wait
from celery_locks.store.effects import Operation
from celery_locks.types import Blocker, Holder

# With more owners than this the search stops, and the wait does not count as a deadlock.
_MOST_OWNERS = 64

Waits = dict[str, Wait]


def read_waits(
    commands: LockCommands, owner: str, name: str = "", known: Iterable[str] = ()
) -> Operation[Waits]:
    """Read the wait of an owner, of the holders that it waits for, and so on; by owner.

    ``name`` is the lock that it waits for, if that is known. The owners ``known`` are not read:
    they wait by the same call.
    """
    waits: Waits = {}
    seen_owners = {owner, *known}
    new = {owner}
    roots = [commands.root(name)] if name else commands.roots
    while new and len(seen_owners) <= _MOST_OWNERS:
        found: list[Wait] = []
        for root in roots:
            found += yield from commands.waits(root, sorted(new))
        waits |= {wait.owner: wait for wait in found}
        new = {
            holder.owner for wait in found for holder in wait.holders if holder.owner
        } - seen_owners
        seen_owners |= new
        roots = commands.roots
    return waits


def find_cycle(
    start: Wait, waits: Mapping[str, Wait], is_own: Callable[[Holder], bool]
) -> tuple[Blocker, ...]:
    """Return the shortest path from a wait to an own holder; () if it may yet come free."""
    blocked = _blocked(waits, is_own)
    if blocked.get(start.owner) != start:
        return ()
    paths: list[tuple[tuple[Blocker, ...], Wait]] = [((), start)]
    seen = {start.token}
    for path, wait in paths:  # the loop appends to it
        for holder in wait.holders:
            step = (*path, Blocker(wait.name, holder))
            if is_own(holder):
                return step
            following = blocked.get(holder.owner)
            if following and _may_wait(holder) and following.token not in seen:
                seen.add(following.token)
                paths.append((step, following))
    return ()


def _blocked(waits: Mapping[str, Wait], is_own: Callable[[Holder], bool]) -> dict[str, Wait]:
    """Return the waits, by owner, that last as long as the caller holds its own locks."""
    blocked = dict(waits)

    def is_blocked(holder: Holder) -> bool:
        return is_own(holder) or (holder.owner in blocked and _may_wait(holder))

    def lasts(wait: Wait) -> bool:
        if any(holder.shared for holder in wait.holders):
            return any(map(is_blocked, wait.holders))
        return wait.is_complete and all(map(is_blocked, wait.holders))

    while free := [owner for owner, wait in blocked.items() if not lasts(wait)]:
        for owner in free:
            del blocked[owner]
    return blocked


def _may_wait(holder: Holder) -> bool:
    """Return False for a slot under which nobody works."""
    return not (holder.is_kept or holder.is_queued)


def find_own_cycle(
    token: str, waits: Mapping[str, Wait], leases: frozenset[str]
) -> tuple[Blocker, ...]:
    """Return the cycle that the wait ``token`` closes; ``leases`` are the tokens of its owner.

    () for all but the wait that started last: one of them must raise, not all.
    """
    own = next((wait for wait in waits.values() if whole_token(wait.token) == token), None)
    if own is None or any(wait.ticket > own.ticket for wait in waits.values()):
        return ()
    return find_cycle(own, waits, lambda holder: whole_token(holder.token) in leases)


def edges(waits: Mapping[str, Wait]) -> set[tuple[str, str]]:
    """Return who waits for whom, by tokens; equal for two reads that saw the same."""
    return {(wait.token, holder.token) for wait in waits.values() for holder in wait.holders}
