"""What an operator does: to holders of locks, to completed work, to entries that nobody needs.

The server records it (``history.py``).
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUnavailable
from celery_locks.recipes.idempotent import DoneWork, done_work, reset
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands, PruneStep
from celery_locks.types import Holder
from celery_locks.validation import check_name, check_seconds

# Seconds between two looks whether one holder, or one of many, has stopped.
_POLL, _BULK_POLL = 0.2, 0.5


def find_holders(locks: Locks, name: str, token: str | None = None) -> tuple[Holder, ...]:
    """Return the holders of a lock, or the one with ``token``; () if it is not held by it.

    A holder that an operator saw a moment ago may have released the lock, and another may have it.
    """
    return tuple(holder for holder in locks.holders(name) if token in (None, holder.token))


def force_release(
    locks: Locks,
    name: str,
    token: str | None = None,
    *,
    reason: str = "",
    by: str = "",
    grace: float | None = 0.0,
) -> tuple[Holder, ...]:
    """Take the lock from its holders, or from the one with ``token``; return who lost it.

    The next waiter gets it. The old holder learns at its next renewal, within a third of its ttl,
    who took the lock and why: ``LockRevoked`` is raised in the running task, or logged with
    ``on_lost="warn"``. Every later fence is higher, so a write of the old holder is refused where
    fences are checked. ``history`` shows who released the lock and why.

    With ``grace`` the holders are asked to stop first and have that many seconds to release the
    lock. It is then taken from those that did not, and never from a holder that came after them.
    ``grace=None`` is the time they need to learn of it, plus 5 s: ``LockInfo.default_grace``.
    """
    check_name(name)
    if grace is None:
        lock = locks.info(name)
        grace = lock.default_grace if lock else 0.0
    check_seconds("grace", grace)
    by = by or current_operator()
    if not grace:
        return _take(locks, name, token or "", by, reason)
    stopping = stop(locks, name, token, reason=reason, by=by)
    left = _wait_for_release(locks, name, {holder.token for holder in stopping}, grace)
    return tuple(lost for old in left for lost in _take(locks, name, old.token, by, reason))


def _take(locks: Locks, name: str, token: str, by: str, reason: str) -> tuple[Holder, ...]:
    commands = AdminCommands(locks.commands)
    call = commands.force_release(name, token, by, reason, request_id=new_token())
    taken: tuple[Holder, ...] = locks.perform(call)
    return taken


def _wait_for_release(
    locks: Locks, name: str, tokens: Collection[str], grace: float
) -> list[Holder]:
    """Return the holders that still have the lock after the grace."""
    ends = time.monotonic() + grace
    while True:
        left = [holder for holder in locks.holders(name) if holder.token in tokens]
        if not left or time.monotonic() >= ends:
            return left
        time.sleep(min(_POLL, max(0.0, ends - time.monotonic())))


def stop(
    locks: Locks, name: str, token: str | None = None, *, reason: str = "", by: str = ""
) -> tuple[Holder, ...]:
    """Ask the holders, or the one with ``token``, to stop; return those that were asked.

    They keep the lock until they end; see ``Locks.stop``.
    """
    check_name(name)
    by = by or current_operator()
    stopping: tuple[Holder, ...] = locks.perform(
        locks.commands.stop(name, token or "", by, reason, request_id=new_token())
    )
    return stopping


def current_operator() -> str:
    """Return the user of this process, for actions that name no other operator."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def list_done(locks: Locks) -> Iterator[DoneWork]:
    """List the keys whose work is marked as completed (``once``)."""
    return done_work(locks)


def reset_done(locks: Locks, key: str, *, reason: str = "", by: str = "") -> bool:
    """Allow the work for a key to run again; True if it was marked. Recorded in the history."""
    return bool(reset(locks, key, by=by or current_operator(), reason=reason))


def trim(locks: Locks, *, dry_run: bool = False) -> int:
    """Remove entries that nobody can need any more; return how many were, or would be, removed.

    Processes that hold locks remove lapsed names in the background (``core/cleanup_job.py``). This
    also works where none runs, and removes the rest: records of holders and waiters that are gone,
    names without any, and index entries of completed work whose mark has expired.
    """
    roots = locks.commands.roots
    return sum(_trim_part(locks, root, part, dry_run) for root in roots for part in PRUNED_KEYS)


def _trim_part(locks: Locks, root: str, part: str, dry_run: bool) -> int:
    commands, total, cursor = AdminCommands(locks.commands), 0, "0"
    while True:
        step: PruneStep = locks.run(commands.prune(root, part, cursor, dry_run=dry_run))
        total, cursor = total + step.entries, step.cursor
        if cursor == "0":
            return total


class Target(NamedTuple):
    """One holder of one lock."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class BulkRelease:
    """The result for each target.

    ``released`` were taken from their holders. ``not_held`` no longer had the lock: it was released
    before, or during the grace. If the server stops answering, ``trouble`` says so and it is not
    known whether the ``unknown`` targets were released.
    """

    released: tuple[tuple[str, Holder], ...] = ()
    not_held: tuple[Target, ...] = ()
    unknown: tuple[Target, ...] = ()
    trouble: str = ""


def force_release_many(
    locks: Locks, targets: Sequence[Target], *, reason: str, by: str = "", grace: float = 0.0
) -> BulkRelease:
    """Call ``force_release`` for each target; all of them have the same grace at the same time."""
    targets = tuple(dict.fromkeys(targets))
    if grace > 0:
        try:
            _stop_and_wait(locks, targets, reason, by, grace)
        except LockUnavailable as error:
            return BulkRelease(unknown=targets, trouble=str(error))
    released: list[tuple[str, Holder]] = []
    not_held: list[Target] = []
    for done, target in enumerate(targets):
        try:
            taken = force_release(locks, target.name, target.token, reason=reason, by=by, grace=0.0)
        except LockUnavailable as error:
            return BulkRelease(tuple(released), tuple(not_held), targets[done:], str(error))
        released.extend((target.name, holder) for holder in taken)
        if not taken:
            not_held.append(target)
    return BulkRelease(tuple(released), tuple(not_held))


def _stop_and_wait(
    locks: Locks, targets: Sequence[Target], reason: str, by: str, grace: float
) -> None:
    """Ask all of them to stop, and wait until none holds its lock or the grace is over."""
    ends = time.monotonic() + grace
    left = [t for t in targets if stop(locks, t.name, t.token, reason=reason, by=by)]
    while left and time.monotonic() < ends:
        time.sleep(min(_BULK_POLL, max(0.0, ends - time.monotonic())))
        left = [target for target in left if find_holders(locks, target.name, target.token)]
