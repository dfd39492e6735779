"""What an operator asks of the locks, as values; nothing is printed here.

The surfaces (command line, web, plain functions) call this and hold no rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_locks.locks import Locks
from celery_locks.model import Holder, LockInfo, check_name
from celery_locks.recipes.once import DoneWork, done_work, reset
from celery_locks.store.verbs import Page


def list_locks(locks: Locks) -> Iterator[LockInfo]:
    """Every lock that is held or waited for, page by page, each as it was when its page was read.

    A lock that is held throughout is listed exactly once, whatever happens to the others meanwhile.
    """
    seen: set[str] = set()
    cursor = ""
    while True:
        page: Page = locks.perform(locks.verbs.page(cursor))
        for info in page.locks:
            if info.name not in seen:
                seen.add(info.name)
                yield info
        cursor = page.cursor
        if not cursor:
            return


def force_release(locks: Locks, name: str, token: str | None = None) -> tuple[Holder, ...]:
    """Take the lock from its holders, or from the one with ``token``; returns those who had it.

    The next in line gets it. The old holder learns at its next renewal that its lease is lost, and
    its fence is lower than any that comes after.
    """
    check_name(name)
    taken: tuple[Holder, ...] = locks.perform(locks.verbs.force_release(name, token or ""))
    return taken


def stop(locks: Locks, name: str, token: str | None = None) -> tuple[Holder, ...]:
    """Ask the holders, or the one with ``token``, to stop; see ``Locks.stop``."""
    return locks.stop(name, token)


def list_done(locks: Locks) -> Iterator[DoneWork]:
    """The keys whose work is marked as done (``once``)."""
    return done_work(locks)


def reset_done(locks: Locks, key: str) -> bool:
    """Let the work for a key be done again; True if it was marked."""
    return reset(locks, key)
