"""What an operator does to the holders of a lock. The server records it (``history.py``)."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Collection

from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.types import Holder
from celery_locks.validation import check_name, check_seconds

_POLL = 0.2


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
