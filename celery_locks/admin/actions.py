"""What an operator does to a lock, and the record of it."""

from __future__ import annotations

import getpass
import heapq
import socket
import time
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from celery_locks.core.locks import Locks
from celery_locks.core.operations import new_token
from celery_locks.store.commands.admin import AdminCommands, HistoryPage
from celery_locks.types import HistoryEntry, Holder, check_name, check_seconds

_LOOK = 0.2


def force_release(
    locks: Locks,
    name: str,
    token: str | None = None,
    *,
    reason: str = "",
    by: str = "",
    grace: float | None = 0.0,
) -> tuple[Holder, ...]:
    """Take the lock from its holders, or from the one with ``token``; returns those who had it.

    The next in line gets it. The old holder learns at its next renewal, within a third of its ttl,
    that it was taken, by whom and why: ``LockRevoked``, raised in the running task, or a log line
    with ``on_lost="warn"``. Its fence is lower than any that comes after, so that a write of its
    is refused where fences are looked at. Who did it and why is in ``history`` too.

    With ``grace`` the holders are asked to stop first, and have so many seconds to give it back by
    themselves; it is then taken from those who did not, and from nobody who came after them.
    ``grace=None`` is long enough for them to learn of it, and 5 s more: ``LockInfo.default_grace``.
    """
    check_name(name)
    if grace is None:
        lock = locks.info(name)
        grace = lock.default_grace if lock else 0.0
    check_seconds("grace", grace)
    words = _signed(by, reason)
    if not grace:
        return _taken(locks, name, token or "", words)
    asked = stop(locks, name, token, reason=reason, by=by)
    left = _left_after(locks, name, asked, grace)
    return tuple(one for had in left for one in _taken(locks, name, had.token, words))


def _taken(locks: Locks, name: str, token: str, words: tuple[str, str]) -> tuple[Holder, ...]:
    call = AdminCommands(locks.commands).force_release(name, token, *words, request_id=new_token())
    taken: tuple[Holder, ...] = locks.perform(call)
    return taken


def _left_after(locks: Locks, name: str, asked: tuple[Holder, ...], grace: float) -> list[Holder]:
    """Those of the holders who still have it when the grace is over."""
    ends = time.monotonic() + grace
    tokens = {holder.token for holder in asked}
    while True:
        left = [holder for holder in locks.holders(name) if holder.token in tokens]
        if not left or time.monotonic() >= ends:
            return left
        time.sleep(min(_LOOK, max(0.0, ends - time.monotonic())))


def stop(
    locks: Locks, name: str, token: str | None = None, *, reason: str = "", by: str = ""
) -> tuple[Holder, ...]:
    """Ask the holders, or the one with ``token``, to stop; see ``Locks.stop``. Returns those asked.

    They keep the lock until they end.
    """
    check_name(name)
    call = locks.commands.stop(name, token or "", *_signed(by, reason), request_id=new_token())
    asked: tuple[Holder, ...] = locks.perform(call)
    return asked


def _signed(by: str, reason: str) -> tuple[str, str]:
    return by or current_operator(), reason


def history(
    locks: Locks, name: str | None = None, *, limit: int = 100, only_acts: bool = False
) -> list[HistoryEntry]:
    """What operators did and which holds ended, of one lock or of any, the latest first.

    About 1000 acts and 1000 holds are kept a shard. A hold is written down when it ends, if it
    lasted a second, or when somebody meets it lapsed.
    """
    if name is not None:
        check_name(name)
    roots = locks.commands.roots if name is None else [locks.commands.root(name)]
    streams: tuple[Literal["log", "past"], ...] = ("log",) if only_acts else ("log", "past")
    acts = heapq.merge(
        *(_acts(locks, root, of) for root in roots for of in streams),
        key=lambda act: act.at,
        reverse=True,
    )
    return list(islice((act for act in acts if name in (None, act.name)), limit))


def _acts(locks: Locks, root: str, of: Literal["log", "past"]) -> Iterator[HistoryEntry]:
    before = ""
    while True:
        page: HistoryPage = locks.perform(
            AdminCommands(locks.commands).history(root, before, of=of)
        )
        yield from page.entries
        before = page.before
        if not before:
            return


def current_operator() -> str:
    """The user of this process, for acts that say no other."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
