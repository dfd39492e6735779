"""Deadlocks: who waits for whom, read from the store. No I/O; ``flows.py`` asks and raises.

A wait is a deadlock when nobody that it depends on can go on: every holder of the lock waits for
another lock whose holders wait in turn, and one of them waits for a lock of the caller's. A holder
whose owner is unknown, or that does not wait, can go on. Only a flow of control that holds a lock
while it waits can be part of one, so nobody else pays for looking.

The locks may be in several shards, which cannot be read at one moment. So they are read twice: a
flow that waits cannot release anything, so waits and holds that are there both times, with the same
tokens, were there together in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from celery_locks.store.commands.locks import LockCommands, Wait
from celery_locks.store.effects import Operation
from celery_locks.types import Blocker, Holder

# More owners than this are not followed: such a wait is not said to be a deadlock.
_MOST_OWNERS = 64

Waits = dict[str, Wait]


def read_waits(
    commands: LockCommands, owner: str, name: str = "", known: Iterable[str] = ()
) -> Operation[Waits]:
    """The wait of an owner, of those who hold what it waits for, and so on; by owner.

    ``name`` is the lock that it waits for, if that is known. Nothing is asked about those
    ``known``: they wait by the same call.
    """
    waits: Waits = {}
    seen_owners = {owner, *known}
    new = {owner}
    roots = [commands.root(name)] if name else commands.roots
    while new and len(seen_owners) <= _MOST_OWNERS:
        found: list[Wait] = []
        for root in roots:
            found += yield commands.waits(root, sorted(new))
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
    """The shortest way from a wait to a holder that ``is_own``; () if anybody can go on."""
    found: tuple[Blocker, ...] = ()
    paths: list[tuple[tuple[Blocker, ...], Wait]] = [((), start)]
    seen = {start.token}
    for path, wait in paths:  # which grows meanwhile
        if not wait.is_complete:
            return ()
        for holder in wait.holders:
            step = (*path, Blocker(wait.name, holder))
            if is_own(holder):
                found = found or step
                continue
            following = waits.get(holder.owner)
            if following is None or holder.is_kept or holder.is_queued:
                return ()
            if following.token not in seen:
                seen.add(following.token)
                paths.append((step, following))
    return found


def find_own_cycle(
    token: str, waits: Mapping[str, Wait], leases: frozenset[str]
) -> tuple[Blocker, ...]:
    """The cycle that the wait ``token`` closes, given the tokens of the leases that wait with it.

    () for all but the last that began to wait: one of them is enough.
    """
    own = next((wait for wait in waits.values() if wait.token == token), None)
    if own is None or any(wait.ticket > own.ticket for wait in waits.values()):
        return ()
    return find_cycle(own, waits, lambda holder: holder.token in leases)


def edges(waits: Mapping[str, Wait]) -> set[tuple[str, str]]:
    """Who waits for whom, by tokens; equal for two readings that saw the same."""
    return {(wait.token, holder.token) for wait in waits.values() for holder in wait.holders}
