"""The locks of a Celery app, created on first use and stored on the app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Unpack, overload

from celery_locks import settings
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.core.requests import AcquireOptions, shows_acquire_options
from celery_locks.integration.hold_in_task import HoldInTask, OnHoldConflict, check_hold_options
from celery_locks.options import Scope
from celery_locks.settings import Settings
from celery_locks.validation import QUEUED

_ATTRIBUTE = "_celery_locks"


class AppLocks(Locks):
    """The locks of an app, with its settings."""

    settings: Settings

    @overload
    def hold(
        self,
        name: str,
        *more: str,
        required: Literal[True] = True,
        on_conflict: OnHoldConflict = "raise",
        **options: Unpack[AcquireOptions],
    ) -> AbstractContextManager[Lease]: ...
    @overload
    def hold(
        self,
        name: str,
        *more: str,
        required: bool,
        on_conflict: OnHoldConflict = "raise",
        **options: Unpack[AcquireOptions],
    ) -> AbstractContextManager[Lease | None]: ...
    @shows_acquire_options
    def hold(
        self,
        name: str,
        *more: str,
        required: bool = True,
        on_conflict: OnHoldConflict = "raise",
        **options: Unpack[AcquireOptions],
    ) -> AbstractContextManager[Any]:
        """Hold a lock while the block runs, as ``Locks.hold`` does; in a task also with a policy.

        ``on_conflict``: what follows if others hold the lock (after ``wait``, if any): "raise"
        raises ``LockConflict`` here, "requeue" ends this run and sends its message again later,
        "skip" ends it with the result of a skipped task. Both end the run as an error would that
        only ``except BaseException`` catches. An eager or direct call has no message, so "requeue"
        raises ``LockConflict`` there.
        """
        check_hold_options(on_conflict, required)
        hold = super().hold(name, *more, required=required, **options)
        return hold if on_conflict == "raise" else HoldInTask(hold, on_conflict)

    @property
    def server_url(self) -> str:
        """The URL of the lock server, without the password."""
        url: str = self._store.server.url
        return url

    def find_call(self, name: str, scope: Scope) -> Literal["queued", "running"] | None:
        """Tell whether the call of a task with this lock name is queued or running."""
        holders = self.holders(name)
        # A lock that is kept after its end (at_least) belongs to no running call.
        if any(not (holder.is_queued or holder.is_kept) for holder in holders):
            return "running"
        if scope == "queued":
            holders += self.holders(name + QUEUED)
        return "queued" if any(holder.is_queued for holder in holders) else None


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
