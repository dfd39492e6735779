"""A lock that is held until the surrounding database transaction ends.

Django reports a commit (``transaction.on_commit``) but no rollback. After a rollback, also of a
savepoint, and when it closes the connection, it removes the functions that wait for the commit
from the connection's list. Nothing else refers to ours, so its finalizer learns of it. This needs
only Django's public functions, and sees every way in which a transaction ends.

The order is the promise: commit first, then release. The next holder reads what this one wrote.

=========================================  =========================================================
end                                        release
=========================================  =========================================================
no transaction                             at the end of the block
commit                                     after it, before ``on_commit`` functions that are
                                           registered later
rollback, of the savepoint too in which    after it, in the background
the block is
the connection is closed or lost           at that moment: the database rolls back, so nothing
                                           that was written under the lock becomes visible
an ``on_commit`` function that is          when its error has been handled: Django calls none of
registered earlier raises                  the others
=========================================  =========================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack
from weakref import finalize

from django.db import transaction

from celery_locks.core.lease import Lease, State
from celery_locks.core.locks import Locks
from celery_locks.core.requests import AcquireOptions, new_token, shows_acquire_options
from celery_locks.django.celery_app import get_locks
from celery_locks.errors import LockUsageError


@shows_acquire_options
@contextmanager
def hold(
    name: str, *, using: str | None = None, **options: Unpack[AcquireOptions]
) -> Iterator[Lease]:
    """Hold a lock of the app until the surrounding transaction has ended; ``as`` gives the lease.

        with transaction.atomic():
            with celery_locks.django.hold("invoice:42", wait=5):
                invoice.save()
        # committed, then released

    Without a transaction it is released at the end of the block. ``using`` is the database; the
    other options are those of ``Locks.hold``. Also a decorator.

    Raises ``LockConflict`` if others hold the lock, and ``LeaseLost`` at the end of a block that
    outlived its lease, so that the transaction rolls back. With autocommit off and no ``atomic``
    Django raises ``TransactionManagementError``: nobody learns when such a transaction ends.
    """
    _check(options)
    locks = get_locks()
    held = _HeldLock(locks)
    transaction.on_commit(_OnCommit(held), using)  # outside of a transaction it is called at once
    if held.is_committed:
        with locks.hold(name, **options) as lease:
            yield lease
        return
    lease = held.acquire(name, options)
    # If the block fails, the lock is kept: its error may be caught before the transaction ends.
    yield lease
    if lease.state is State.LOST:
        raise lease.loss("it ended before the block did; the transaction rolls back")


def _check(options: AcquireOptions) -> None:
    unknown = options.keys() - AcquireOptions.__annotations__.keys()
    if unknown:
        raise LockUsageError(f"hold has no option {min(unknown)!r}")


class _HeldLock:
    """One acquire, known by its token, so that it is released also if it was interrupted."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._token = new_token()
        self._lease: Lease | None = None
        self.is_committed = False

    def acquire(self, name: str, options: AcquireOptions) -> Lease:
        locks, token = self._locks, self._token
        try:
            lease = locks.run(locks.operations.enter_hold(name, token, locks.ttl, options, True))
            assert lease is not None  # it is required
            self._lease = lease
            return lease
        except BaseException:
            self.release_later()
            raise

    def on_commit(self) -> None:
        """Release. A loss is not raised: what is committed stays, and its event was emitted."""
        self.is_committed = True
        self._locks.run(self._locks.operations.exit_hold(self._lease, True, self._token))

    def release_later(self) -> None:
        """Have the background thread release it: in a finalizer an error would be swallowed."""
        self._locks.operations.release_if_acquired(self._token)


class _OnCommit:
    """The function that Django calls after a commit, and forgets after a rollback."""

    def __init__(self, held: _HeldLock) -> None:
        self._held = held
        # At exit nothing is left to learn: the transaction has ended, or ends with the process.
        finalize(self, held.release_later).atexit = False

    def __call__(self) -> None:
        self._held.on_commit()
