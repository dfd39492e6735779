"""The locks of a Celery app, created on first use and stored on the app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_locks import settings
from celery_locks.clock import now
from celery_locks.core.locks import Locks
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.settings import Settings
from celery_locks.store.calls import Store

_ATTRIBUTE = "_celery_locks"


class AppLocks(Locks):
    """The locks of an app, with its settings."""

    settings: Settings

    @property
    def server_url(self) -> str:
        """The URL of the lock server, without the password."""
        url: str = self._store.server.url
        return url

    @property
    def background_store(self) -> Store:
        """The store for calls that run in the background thread."""
        return self._store.store_for_thread()

    def release_later(
        self, name: str, token: str, retry_for: float, history_note: str | None = None
    ) -> None:
        """Have the background thread release this token; it tries for ``retry_for`` seconds."""
        store, give_up_at = self.background_store, now() + retry_for
        renewer.release_later(
            PendingRelease(name, token, store, self.commands, give_up_at, history_note=history_note)
        )


def locks_of(app: Any) -> AppLocks:
    """Return the locks of an app, the same object each time."""
    locks: AppLocks | None = getattr(app, _ATTRIBUTE, None)
    if locks is None:
        locks = AppLocks.from_app(app)
        locks.settings = settings.of(app)
        setattr(app, _ATTRIBUTE, locks)
    return locks


def broker_trouble(app: Any) -> str:
    """Say why the broker cannot be reached, without its password; "" if it can."""
    connection = app.connection_for_write(connect_timeout=3)
    try:
        with connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
    except Exception as error:  # noqa: BLE001 (each transport has errors of its own)
        return f"{connection.as_uri()}: {str(error)[:300]}"
    return ""


def replace_locks(app: Any, locks: AppLocks | None) -> AppLocks | None:
    """Replace the locks of an app, for tests; None returns to those of the settings.

    Returns the previous locks, so that the caller can restore them.
    """
    before: AppLocks | None = getattr(app, _ATTRIBUTE, None)
    setattr(app, _ATTRIBUTE, locks)
    return before


# The number of ``unlocked_tasks`` blocks that this process is in.
unlocked_blocks = 0


@contextmanager
def unlocked_tasks() -> Iterator[None]:
    """Run every task of this process without its lock inside the block, for tests.

    It affects the whole process, not one context, so that it includes a worker in another thread.
    """
    global unlocked_blocks
    unlocked_blocks += 1
    try:
        yield
    finally:
        unlocked_blocks -= 1
