"""What an app has: its locks, made when first needed and kept on the app."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery_locks import settings
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.core.requests import AcquireRequest
from celery_locks.settings import Settings
from celery_locks.store.commands.locks import Done, Mark
from celery_locks.store.effects import Store
from celery_locks.types import Conflict

_ATTRIBUTE = "_celery_locks"


class AppLocks(Locks):
    """Locks with what tasks need beyond everybody's."""

    settings: Settings

    def take(self, ask: AcquireRequest[Lease]) -> Lease | Conflict | Done:
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
        try:
            call = self.operations.prepare_release(lease, marks, keep, keep_as)
            if call:
                self.operations.finish_release(lease, self._store.perform(call))
        except BaseException:
            self.operations.defer_release(lease, marks, keep, keep_as)
            raise

    @property
    def server_url(self) -> str:
        """Where the locks are kept, without the password."""
        url: str = self._store.server.url
        return url

    @property
    def background_store(self) -> Store:
        """For calls made in the keeper's thread."""
        return self._store.store_for_thread()


def locks_of(app: Any) -> AppLocks:
    """The locks of an app, the same object each time."""
    locks: AppLocks | None = getattr(app, _ATTRIBUTE, None)
    if locks is None:
        locks = AppLocks.from_app(app)
        locks.settings = settings.of(app)
        setattr(app, _ATTRIBUTE, locks)
    return locks


def broker_trouble(app: Any) -> str:
    """Why the broker cannot be reached, without its password; "" if it can."""
    connection = app.connection_for_write(connect_timeout=3)
    try:
        with connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
    except Exception as error:  # noqa: BLE001 (each transport has errors of its own)
        return f"{connection.as_uri()}: {str(error)[:300]}"
    return ""


def replace_locks(app: Any, locks: AppLocks | None) -> AppLocks | None:
    """For tests: other locks than the settings say; None returns to the settings.

    Returns those it had, for putting them back.
    """
    before: AppLocks | None = getattr(app, _ATTRIBUTE, None)
    setattr(app, _ATTRIBUTE, locks)
    return before


# How many blocks of ``unlocked_tasks`` this process is in.
unlocked_by = 0


@contextmanager
def unlocked_tasks() -> Iterator[None]:
    """For tests: every task in this process runs without its lock while the block does.

    Of the whole process and not of a context: a worker that a test runs in a thread is meant too.
    """
    global unlocked_by
    unlocked_by += 1
    try:
        yield
    finally:
        unlocked_by -= 1
