"""What an operator does to a lock, and the record of it."""

from __future__ import annotations

import getpass
import heapq
import socket
from collections.abc import Iterator
from itertools import islice

from celery_locks.locks import Locks
from celery_locks.model import Act, Holder, check_name
from celery_locks.store.verbs import PAGE

_LONGEST = 500


def force_release(
    locks: Locks, name: str, token: str | None = None, *, reason: str = "", by: str = ""
) -> tuple[Holder, ...]:
    """Take the lock from its holders, or from the one with ``token``; returns those who had it.

    The next in line gets it. The old holder learns at its next renewal that its lease is lost, and
    its fence is lower than any that comes after. Who did it and why is in ``history``.
    """
    check_name(name)
    by = (by or this_operator())[:_LONGEST]
    call = locks.verbs.force_release(name, token or "", by, reason[:_LONGEST])
    taken: tuple[Holder, ...] = locks.perform(call)
    return taken


def history(locks: Locks, name: str | None = None, *, limit: int = 100) -> list[Act]:
    """What operators did, to one lock or to any, the latest first; about 1000 acts are kept."""
    if name is not None:
        check_name(name)
    roots = locks.verbs.roots if name is None else [locks.verbs.root(name)]
    acts = heapq.merge(
        *(_acts(locks, root) for root in roots), key=lambda act: act.at, reverse=True
    )
    return list(islice((act for act in acts if name in (None, act.name)), limit))


def _acts(locks: Locks, root: str) -> Iterator[Act]:
    before = ""
    while True:
        page: list[Act] = locks.perform(locks.verbs.history(root, before))
        yield from page
        if len(page) < PAGE:
            return
        before = page[-1].id


def this_operator() -> str:
    """The user of this process, for acts that say no other."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
