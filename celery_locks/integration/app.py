"""The locks of a Celery app, created on first use and stored on the app."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery_locks import settings
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.core.requests import AcquireRequest
from celery_locks.settings import Settings
from celery_locks.store.calls import Store
from celery_locks.store.commands.replies import Rejection
from celery_locks.store.commands.requests import Mark
from celery_locks.types import Conflict

_ATTRIBUTE = "_celery_locks"


class AppLocks(Locks):
    """Locks with the additional methods that tasks need."""

    settings: Settings

    def take(self, ask: AcquireRequest[Lease]) -> Lease | Conflict | Rejection:
        """Acquire a lock for a task: one call to the store, or several if it waits."""
        if ask.spec.wait:
            return self.follow(self.operations.acquire(ask))
        try:
            call = self.commands.acquire(ask.spec, ask.token, ask.holder, ask.extras)
            answer = self._store.perform(call)
            return self.operations.on_reply(ask, answer, ask.began)
        except BaseException as error:
            self.operations.on_no_reply(ask, error)
            raise

    def give_back(self, lease: Lease, marks: Sequence[Mark], keep: float, keep_as: str) -> None:
        """Release a task's lock, or keep it for ``keep`` seconds under the token ``keep_as``."""
        try:
            call = self.operations.prepare_release(lease, marks, keep, keep_as)
            if call:
                self.operations.finish_release(lease, self._store.perform(call))
        except BaseException:
            self.operations.defer_release(lease, marks, keep, keep_as)
            raise

    @property
    def server_url(self) -> str:
        """The URL of the lock server, without the password."""
        url: str = self._store.server.url
        return url

    @property
    def background_store(self) -> Store:
        """The store for calls that run in the background thread."""
        return self._store.store_for_thread()


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
unlocked_by = 0


@contextmanager
def unlocked_tasks() -> Iterator[None]:
    """Run every task of this process without its lock inside the block, for tests.

    It affects the whole process, not one context, so that it includes a worker in another thread.
    """
    global unlocked_by
    unlocked_by += 1
    try:
        yield
    finally:
        unlocked_by -= 1
