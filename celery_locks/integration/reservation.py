"""The reservation of a message: the lock that it holds from publish until it runs.

Its token is made of the task's id, so that a revoke, which knows nothing else, can release it at
once wherever the message is (``revoked.py``). Each process that handles a message makes one
:class:`Reservation` of it, and every end of the message calls one method:

==============================================  ====================================
end                                             method
==============================================  ====================================
the run acquires the lock in the same shard     ``on_acquired``: the call released it
the run acquires a lock in another shard        ``on_acquired``: releases it
conflict, skipped or raised; work completed     ``release``
requeued                                        ``extend``, then ``pass_on``
retried                                         ``pass_on``: the next attempt has it
a copy is dropped                               ``pass_on``: its run has ended it
the run never began, or raised before its lock  ``release``
revoked, expired or lost in the main process    ``release``
==============================================  ====================================
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from celery.utils.time import maybe_make_aware

from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.revoked import RETRY_FOR, revoked
from celery_locks.store.commands.locks import WOKE
from celery_locks.store.commands.replies import Renewal
from celery_locks.types import Holder
from celery_locks.validation import MAX_SECONDS

# In the ``extra`` of a reservation: the task id of the message that it replaced, and the lifetime
# of that message's reservation.
REPLACES = "replaces"


class Reservation:
    """The lock that one message holds; without a token, the message holds none."""

    __slots__ = ("_app", "is_owned", "name", "token")

    def __init__(self, name: str, token: str, app: Any) -> None:
        self.name = name
        self.token = token
        self._app = app
        self.is_owned = bool(token)

    @classmethod
    def of(cls, request: Any, app: Any) -> Reservation:
        """Return the reservation of Celery's request, the same each time. Never raises."""
        found: Reservation | None = getattr(request, "celery_locks_reservation", None)
        if found is None:
            found = request.celery_locks_reservation = cls._read(request, app)
        return found

    @classmethod
    def _read(cls, request: Any, app: Any) -> Reservation:
        try:
            header = LockHeader.read(request.headers)
        except LockUsageError:
            return _UnknownReservation("", request.id, app)
        return cls(*header.reservation(request.id), app)

    def release(self, retry_for: float = RETRY_FOR) -> None:
        """Release it, once: the message will not run and not come back."""
        if self.is_owned:
            self._release_later(retry_for)
            # Not before: if an exception interrupts it, the next call releases again.
            self.is_owned = False

    def release_now(self) -> bool:
        """Release it before returning, if the server replies; True if it woke a parked message.

        For a run that does not need it: the next one may be waiting for it.
        """
        woke = False
        if self.is_owned:
            locks = locks_of(self._app)
            try:
                woke = locks.perform(locks.commands.release(self.name, self.token)) == WOKE
            except LockUnavailable:
                self._release_later(RETRY_FOR)
            self.is_owned = False
        return woke

    def _release_later(self, retry_for: float) -> None:
        locks_of(self._app).operations.release_later(self.name, self.token, retry_for)

    def pass_on(self) -> None:
        """Leave it to the run, the next attempt or the requeued message, which releases it."""
        self.is_owned = False

    def on_acquired(self, name: str) -> None:
        """End it, as the run has acquired the lock ``name``."""
        if self.token and self.name != name and not self.released_by_acquire(name)[1]:
            self.release()  # published under a key of another shard, with other options
        self.pass_on()

    def released_by_acquire(self, name: str) -> tuple[str, str]:
        """Name and token, if the call that acquires ``name`` can release it; else empty.

        A reservation of the same name is taken over by the run and not released.
        """
        if not self.token or self.name == name:
            return "", ""
        root = locks_of(self._app).commands.root
        return (self.name, self.token) if root(self.name) == root(name) else ("", "")

    def extend(self, seconds: float, budget: float) -> None:
        """Keep it for a requeued message, as long as for a new one; best effort."""
        if self.token:
            locks = locks_of(self._app)
            renewal = Renewal(self.name, self.token, seconds)
            with suppress(LockUnavailable):
                locks.perform(locks.commands.renew([renewal], budget))


class _UnknownReservation(Reservation):
    """The reservation of a message whose header cannot be read; the token is its task id."""

    __slots__ = ()

    def _release_later(self, retry_for: float) -> None:
        revoked.add([self.token], self._app)  # the store finds it by the task's id


NO_RESERVATION = Reservation("", "", None)


def replaced_message(holder: Holder) -> tuple[str, float]:
    """Return the task id of the message that a reservation replaced, and how long to keep it."""
    task_id, seconds = holder.extra.get(REPLACES) or ("", 0.0)
    return str(task_id), min(float(seconds), MAX_SECONDS)


def seconds_until(when: float | str | datetime | None, app: Any) -> float:
    """Return the seconds from now to a countdown, an ISO text or a time; 0 for None or the past.

    Celery takes a naive time for UTC, in every time zone.
    """
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        aware = maybe_make_aware(when, app.timezone)
        when = float((aware - datetime.now(UTC)).total_seconds())
    return max(0.0, float(when or 0.0))
