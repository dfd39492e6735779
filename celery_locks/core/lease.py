"""The lease: proof of having acquired a lock, with the moment until which the proof is good.

The deadline is the holder's own and counted from *before* the call that got or renewed it, less a
margin for clocks that run at different speeds, so it always passes before the store's does. A
renewal that fails is unknown, not lost: the lease is SUSPENDED and tried again until the deadline.
LOST and RELEASED are final.

Renewing and releasing are done by the face (``Locks`` or ``AsyncLocks``) that made the lease.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from enum import StrEnum
from typing import Any, Protocol

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.owners import Owner
from celery_locks.errors import LeaseLost, LockRevoked, StopRequested
from celery_locks.types import LockSpec, Revocation
from celery_locks.unpatched import native_rlock

logger = logging.getLogger("celery_locks")


class State(StrEnum):
    HELD = "held"
    SUSPENDED = "suspended"  # the last renewal failed; the deadline has not passed
    LOST = "lost"
    RELEASED = "released"


# A hold of so many seconds is written down when it ends (note_past in past.lua).
NOTED = 1.0
NOT_ON_SERVER = "the lock server no longer has it: taken over, freed or wiped"

LostCallback = Callable[["BaseLease", LeaseLost], object]
StopCallback = Callable[["BaseLease", StopRequested], object]


def trusted_until(sent_at: float, ttl: float) -> float:
    """Counted from before the call: a slow reply must not lengthen our trust."""
    return sent_at + ttl - (ttl * 0.01 + 0.002)


class LeaseBackend(Protocol):
    def renew(self, lease: Any, ttl: float | None = None) -> Any: ...
    def release(self, lease: Any) -> Any: ...


class BaseLease:
    """What the sync and the async lease have in common: everything but renewing and releasing."""

    face: LeaseBackend
    entries: frozenset[str] = frozenset()  # one token for each time it was entered again
    renewals = 0
    stop_requested = False
    on_stop: StopCallback | None = None
    task: str | None = None
    task_id: str | None = None
    owner: Owner | None = None
    _suspended = False
    _end: State | None = None
    _reason = ""
    _revoked: Revocation | None = None

    def __init__(
        self,
        spec: LockSpec,
        token: str,
        fence: int,
        sent_at: float,
        on_lost: LostCallback | None = None,
        granted: float | None = None,
    ) -> None:
        """``granted`` is for how long it was granted, if not for its whole ttl."""
        self.name, self.ttl, self.limit, _, self.at_least = spec
        self.token = token
        self.fence = fence
        self._since = sent_at
        self._pid = os.getpid()
        # On ``clock.now``: until then, and not after, the lock is ours without asking.
        self.deadline = trusted_until(sent_at, granted or self.ttl)
        self._on_lost = on_lost
        # Re-entrant: a signal that asks about the lease may interrupt any of its methods.
        self._ending = native_rlock()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} {self.state} fence={self.fence} "
            f"remaining={self.remaining:.1f}s>"
        )

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is ours even if no renewal succeeds; 0 once it is not."""
        return 0.0 if self._end else max(0.0, self.deadline - now())

    @property
    def reason(self) -> str:
        """Why it is lost; empty while it is not."""
        return self._reason

    @property
    def acquired_at(self) -> float:
        """By the wall clock, for people to read."""
        return time.time() - self.held_for

    @property
    def held_for(self) -> float:
        return now() - self._since

    @property
    def state(self) -> State:
        if self._end:
            return self._end
        if now() >= self.deadline:
            return State.LOST
        return State.SUSPENDED if self._suspended else State.HELD

    def check(self) -> None:
        """Return if the lock is ours at this moment, else raise ``LeaseLost``. No I/O.

        Raises ``StopRequested`` if it is ours and we are asked to stop.
        """
        self._check_held()
        if self.stop_requested:
            raise StopRequested(self.name)

    def _check_held(self) -> None:
        if self._end is None and now() >= self.deadline:
            self.lose("it was not renewed in time")
        if self._end is State.LOST:
            raise self.loss(self._reason)
        if self._end is State.RELEASED:
            raise LeaseLost(self.name, "it was released")

    def loss(self, reason: str) -> LeaseLost:
        """The error for a lease that is lost: ``LockRevoked`` if an operator took it."""
        return (
            LockRevoked(self.name, *self._revoked)
            if self._revoked
            else LeaseLost(self.name, reason)
        )

    def check_renewable(self) -> None:
        """A lease that was lost without anybody's asking stays lost."""
        self._check_held()

    def is_foreign(self) -> bool:
        """True in a forked child: the lease is still the parent's, which renews and releases it."""
        return self._pid != os.getpid()

    # What follows is for the keeper and the face.

    @property
    def has_ended(self) -> bool:
        """Lost and told so, or released: nothing is left to renew."""
        return self._end is not None

    def retime(self, ttl: float, sent_at: float) -> None:
        """To be renewed with another ttl. A shorter one counts as soon as the store may know it."""
        with self._ending:
            self.ttl = ttl
            self.deadline = min(self.deadline, trusted_until(sent_at, ttl))

    def renewed(self, sent_at: float, ttl: float | None = None) -> None:
        """The store has it for another ``ttl``, by default the lease's own."""
        with self._ending:
            if self._end:
                return
            revived = now() >= self.deadline
            until = trusted_until(sent_at, ttl or self.ttl)
            # With a ttl from before a change, nobody knows which of the two came last in the store.
            nearer = ttl is not None and ttl != self.ttl
            self.deadline = min(self.deadline, until) if nearer else max(self.deadline, until)
            self._suspended = False
            self.renewals += 1
        self.tell("revived" if revived else "renewed")

    def suspend(self, why: BaseException) -> None:
        """A renewal failed; said once for each time it begins."""
        if self._suspended or self._end:
            return
        self._suspended = True
        self.tell("suspended", why=str(why), remaining=self.remaining)

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        """It is gone; ``revoked`` if an operator took it, which then is the reason."""
        if not self._is_lost_now(reason, revoked):
            return
        error = self.loss(reason)
        if self._on_lost:
            try:
                self._on_lost(self, error)
            except Exception:
                logger.exception("on_lost of lock %r failed", self.name)
        self.tell("lost", why=error.reason, revoked=bool(revoked))

    def request_stop(self) -> None:
        """Said with every renewal from then on; heard once."""
        if self.stop_requested or self._end:
            return
        self.stop_requested = True
        if self.on_stop:
            try:
                self.on_stop(self, StopRequested(self.name))
            except Exception:
                logger.exception("on_stop of lock %r failed", self.name)
        self.tell("stop")

    def tell(self, kind: events.EventKind, **detail: Any) -> None:
        """An event of this lease."""
        events.emit(
            kind,
            self.name,
            self.token,
            self.fence,
            task=self.task,
            task_id=self.task_id,
            **detail,
        )

    def leaves(self, keep: float = 0.0) -> tuple[float, str | None]:
        """For how long the slot stays taken when it ends now, and the note about its past, if any.

        No note of short ones: nobody asks after them, and they are what most calls are about.
        """
        held_for = now() - self._since
        return max(keep, self.at_least - held_for), "" if held_for >= NOTED else None

    def begin_release(self) -> bool:
        """From now on it counts as released; False if it did before, or is the parent process's.

        One that is lost stays so, and is released all the same: it may be ours in the store still.
        """
        if self._pid != os.getpid():
            return False
        with self._ending:
            was_released = self._end is State.RELEASED
            self._end = self._end or State.RELEASED
        if self.owner:
            self.owner.leases.pop(self.token, None)
        return not was_released

    def _is_lost_now(self, reason: str, revoked: Revocation | None) -> bool:
        """True for the one who is first to say so, if it has not been released."""
        # A thread of the parent's that had the lock at the fork gives it back there, not here.
        with nullcontext() if self.is_foreign() else self._ending:
            if self._end:
                return False
            self._revoked = revoked
            self._reason = LockRevoked(self.name, *revoked).reason if revoked else reason
            self._end = State.LOST
            return True


class Lease(BaseLease):
    """A lease whose verbs block."""

    def renew(self, ttl: float | None = None) -> None:
        """Renew now, from now on with ``ttl`` if given; ``LeaseLost`` if it is no longer ours.

        The lock of a task in a prefork child is renewed by the main process, with the task's ttl:
        there a longer one counts as that.
        """
        self.face.renew(self, ttl)

    def release(self) -> bool:
        """Give the lock back; a second call does nothing. True if it was ours until now.

        False: it was not; or the server's answer was lost, and asked again it found nothing.
        """
        return bool(self.face.release(self))


class AsyncLease(BaseLease):
    """A lease whose verbs are awaited."""

    def renew(self, ttl: float | None = None) -> Awaitable[None]:
        awaitable: Awaitable[None] = self.face.renew(self, ttl)
        return awaitable

    def release(self) -> Awaitable[bool]:
        awaitable: Awaitable[bool] = self.face.release(self)
        return awaitable
