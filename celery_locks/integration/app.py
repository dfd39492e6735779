"""What an app has: its locks, made when first needed and kept on the app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_locks import settings
from celery_locks.locks import Locks
from celery_locks.settings import Settings
from celery_locks.store.base import Store

_ATTRIBUTE = "_celery_locks"


class AppLocks(Locks):
    """Locks with what tasks need beyond everybody's."""

    settings: Settings

    @property
    def keeper_store(self) -> Store:
        """For calls made in the keeper's thread."""
        return self._store.twin()


def locks_of(app: Any) -> AppLocks:
    """The locks of an app, the same object each time."""
    locks = getattr(app, _ATTRIBUTE, None)
    if locks is None:
        locks = AppLocks.from_app(app)
        locks.settings = settings.of(app)
        setattr(app, _ATTRIBUTE, locks)
    assert isinstance(locks, AppLocks)
    return locks


def replace_locks(app: Any, locks: AppLocks | None) -> AppLocks | None:
    """For tests: other locks than the settings say; None returns to the settings.

    Returns those it had, for putting them back.
    """
    before: AppLocks | None = getattr(app, _ATTRIBUTE, None)
    setattr(app, _ATTRIBUTE, locks)
    return before


_unlocked_by = 0


def tasks_run_unlocked() -> bool:
    return _unlocked_by > 0


@contextmanager
def unlocked_tasks() -> Iterator[None]:
    """For tests: every task in this process runs without its lock while the block does.

    Of the whole process and not of a context: a worker that a test runs in a thread is meant too.
    """
    global _unlocked_by
    _unlocked_by += 1
    try:
        yield
    finally:
        _unlocked_by -= 1
