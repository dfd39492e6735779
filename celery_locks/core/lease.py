"""The lease: proof that a lock is acquired, and the deadline until which the proof is valid.

The deadline is the holder's own and counted from *before* the call that got or renewed it, less a
margin for clocks that run at different speeds, so it always passes before the store's does. After
a failed renewal nobody knows whether the lease is renewed: it is SUSPENDED and tried again until
the deadline. LOST and RELEASED are final.

The ``Locks`` or ``AsyncLocks`` that made the lease renews and releases it.

More than 300 lines: the sync and the async lease share their states, which are read together.
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
from celery_locks.errors import LeaseLost, LockRevoked, LockUsageError, StopRequested
from celery_locks.types import Holder, LockSpec, Revocation
from celery_locks.unpatched import native_rlock

logger = logging.getLogger("celery_locks")


class State(StrEnum):
    """The state of a lease."""

    HELD = "held"
    SUSPENDED = "suspended"  # the last renewal failed; the deadline has not passed
    LOST = "lost"
    RELEASED = "released"


# A hold at least this long is added to the history when it ends (note_past in past.lua).
MIN_NOTED_HOLD = 1.0
NOT_ON_SERVER = "the lock server no longer has it: taken over, freed or wiped"

LostCallback = Callable[["BaseLease", LeaseLost], object]
StopCallback = Callable[["BaseLease", StopRequested], object]


def trusted_until(sent_at: float, ttl: float) -> float:
    """Count from before the call: a slow reply must not lengthen our trust."""
    return sent_at + ttl - (ttl * 0.01 + 0.002)


class LeaseBackend(Protocol):
    """The object that renews and releases a lease: ``Locks`` or ``AsyncLocks``."""

    def renew(self, lease: Any, ttl: float | None = None) -> Any: ...
    def release(self, lease: Any) -> Any: ...
    def push_back(self, key: str, seconds: float) -> Any: ...


class BaseLease:
    """What the sync and the async lease share: everything but renewing and releasing.

    ``parts`` are the further locks that were acquired together with this one.
    """

    backend: LeaseBackend
    parts: tuple[PartLease, ...] = ()
    holder: Holder | None = None  # as the store knows it, to assert the lease again
    entries: frozenset[str] = frozenset()  # one token for each reentrant acquire
    renewals = 0
    stop_requested = False
    on_stop: StopCallback | None = None
    task: str | None = None
    task_id: str | None = None
    owner: Owner | None = None
    rates: tuple[str, ...] = ()  # the names of the rates that limited its start
    woke_parked = False  # its release has woken a parked message
    _suspended = False
    _final_state: State | None = None
    _reason = ""
    _revoked: Revocation | None = None

    def __init__(
        self,
        spec: LockSpec,
        token: str,
        fence: int,
        sent_at: float,
        on_lost: LostCallback | None = None,
        valid_for: float | None = None,
    ) -> None:
        """Make a lease that is valid for ``valid_for`` seconds, by default for its whole ttl."""
        self.name, self.ttl, self.limit, _, self.at_least = spec
        self.token = token
        self.fence = fence
        self._sent_at = sent_at
        self._pid = os.getpid()
        # On ``clock.now``: until then, and not after, the lock is ours without a call.
        self.deadline = trusted_until(sent_at, valid_for or self.ttl)
        self._on_lost = on_lost
        # Reentrant: a signal handler that uses the lease may interrupt any of its methods.
        self._end_lock = native_rlock()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} {self.state} fence={self.fence} "
            f"remaining={self.remaining:.1f}s>"
        )

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock, by name; more than one if several were acquired together."""
        return {lease.name: lease.fence for lease in (self, *self.parts)}

    @property
    def shared(self) -> bool:
        """True if others may share the lock."""
        return self.limit == 0

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is ours even if no renewal succeeds; 0 once it is lost."""
        return 0.0 if self._final_state else max(0.0, self.deadline - now())

    @property
    def reason(self) -> str:
        """Why the lease is lost; empty while it is not."""
        return self._reason

    @property
    def acquired_at(self) -> float:
        """The time of the acquire by the wall clock, for people to read."""
        return time.time() - self.held_for

    @property
    def held_for(self) -> float:
        return now() - self._sent_at

    @property
    def state(self) -> State:
        if self._final_state:
            return self._final_state
        if now() >= self._first_deadline:
            return State.LOST
        return State.SUSPENDED if self._suspended else State.HELD

    def check(self) -> None:
        """Return if the lock is ours now, else raise ``LeaseLost``. No I/O.

        Raises ``StopRequested`` if it is ours and its holder is asked to stop.
        """
        self._check_held()
        if self.stop_requested:
            raise StopRequested(self.name)

    @property
    def _first_deadline(self) -> float:
        parts = self.parts
        return min(self.deadline, *(it.deadline for it in parts)) if parts else self.deadline

    def _check_held(self) -> None:
        if self._final_state is None and now() >= self._first_deadline:
            self.lose("it was not renewed in time")
        if self._final_state is State.LOST:
            raise self.loss(self._reason)
        if self._final_state is State.RELEASED:
            raise LeaseLost(self.name, "it was released")

    def loss(self, reason: str) -> LeaseLost:
        """Return the error for a lost lease: ``LockRevoked`` if an operator took the lock."""
        return (
            LockRevoked(self.name, *self._revoked)
            if self._revoked
            else LeaseLost(self.name, reason)
        )

    def check_renewable(self) -> None:
        """Raise ``LeaseLost`` if the lease has ended: a lost lease stays lost."""
        self._check_held()

    def is_foreign(self) -> bool:
        """Return True in a forked child: the parent renews and releases the lease."""
        return self._pid != os.getpid()

    # The methods below are for the renewer and the backend.

    @property
    def has_ended(self) -> bool:
        """True if it is lost and the holder was told, or if it is released."""
        return self._final_state is not None

    def change_ttl(self, ttl: float, sent_at: float) -> None:
        """Set another ttl; a shorter one counts as soon as the store may have it."""
        with self._end_lock:
            self.ttl = ttl
            self.deadline = min(self.deadline, trusted_until(sent_at, ttl))

    def mark_renewed(self, sent_at: float, ttl: float | None = None) -> None:
        """Note that the store renewed it for ``ttl``, by default the lease's own."""
        with self._end_lock:
            if self._final_state:
                return
            revived = now() >= self.deadline
            until = trusted_until(sent_at, ttl or self.ttl)
            # After a change of the ttl nobody knows which of the two reached the store last.
            ttl_changed = ttl is not None and ttl != self.ttl
            self.deadline = min(self.deadline, until) if ttl_changed else max(self.deadline, until)
            self._suspended = False
            self.renewals += 1
        self.emit("revived" if revived else "renewed")

    def suspend(self, why: BaseException) -> None:
        """Note that a renewal failed; emit the event only for the first failure in a row."""
        if self._suspended or self._final_state:
            return
        self._suspended = True
        self.emit("suspended", why=str(why), remaining=self.remaining)

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        """Note that the lease is lost; ``revoked`` says that an operator took the lock."""
        if not self._mark_lost(reason, revoked):
            return
        error = self.loss(reason)
        if self._on_lost:
            try:
                self._on_lost(self, error)
            except Exception:
                logger.exception("on_lost of lock %r failed", self.name)
        self.emit("lost", why=error.reason, revoked=bool(revoked))

    def request_stop(self) -> None:
        """Tell the holder to stop, once: the store repeats the request with every renewal."""
        if self.stop_requested or self._final_state:
            return
        self.stop_requested = True
        if self.on_stop:
            try:
                self.on_stop(self, StopRequested(self.name))
            except Exception:
                logger.exception("on_stop of lock %r failed", self.name)
        self.emit("stop")

    def emit(self, kind: events.EventKind, **detail: Any) -> None:
        """Emit an event of this lease."""
        events.emit(
            kind,
            self.name,
            self.token,
            self.fence,
            task=self.task,
            task_id=self.task_id,
            **detail,
        )

    def release_arguments(self, keep_for: float = 0.0) -> tuple[float, str | None]:
        """Return how long the slot stays taken if the hold ends now, and its history note or None.

        Short holds get no note: they are the most frequent, and nobody looks for them.
        """
        held_for = now() - self._sent_at
        return max(keep_for, self.at_least - held_for), "" if held_for >= MIN_NOTED_HOLD else None

    def begin_release(self) -> bool:
        """Mark it released; return False if it was before, or is the parent process's.

        A lost lease stays lost, and is released too: the store may still have it as ours.
        """
        if self._pid != os.getpid():
            return False
        with self._end_lock:
            was_released = self._final_state is State.RELEASED
            self._final_state = self._final_state or State.RELEASED
        if self.owner:
            self.owner.leases.pop(self.token, None)
        return not was_released

    def _mark_lost(self, reason: str, revoked: Revocation | None) -> bool:
        """Mark it lost; return False if it had ended before."""
        # A thread of the parent that held this lock at the fork releases it there, not here.
        with nullcontext() if self.is_foreign() else self._end_lock:
            if self._final_state:
                return False
            self._revoked = revoked
            self._reason = LockRevoked(self.name, *revoked).reason if revoked else reason
            self._final_state = State.LOST
            return True


class PartLease(BaseLease):
    """A further lock of a lease on several: if it is lost, the whole lease is.

    Its token is the lease's with "/1", "/2", …; the lease releases it.
    """

    whole: BaseLease | None = None  # None until all of them are acquired

    def join(self, whole: BaseLease) -> None:
        self.whole = whole
        if self.has_ended:
            self._end_whole()

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        if self._mark_lost(reason, revoked):
            self._end_whole()

    def _end_whole(self) -> None:
        if self.whole:
            reason = f"lock {self.name!r}, held together with it, is lost: {self.reason}"
            self.whole.lose(reason, self._revoked)

    def request_stop(self) -> None:
        if self.whole:
            self.whole.request_stop()

    def suspend(self, why: BaseException) -> None:
        if self.whole:
            self.whole.suspend(why)

    def emit(self, kind: events.EventKind, **detail: Any) -> None:
        """Emit nothing: the events are those of the whole lease."""


def part_token(token: str, number: int) -> str:
    """Return the token of a further lock; ``several.lua`` makes the same."""
    return f"{token}/{number}"


def whole_token(token: str) -> str:
    """Return the token of the lease to which a lock's token belongs."""
    return token.partition("/")[0]


class Lease(BaseLease):
    """A lease with blocking methods."""

    def renew(self, ttl: float | None = None) -> None:
        """Renew now, and from now on with ``ttl`` if given; ``LeaseLost`` if it is no longer ours.

        The worker's main process renews the lock of a task in a prefork child with the task's ttl:
        there a longer ``ttl`` has the effect of the task's.
        """
        self.backend.renew(self, ttl)

    def push_back(self, seconds: float) -> None:
        """Let no task start at the rates of this one for some seconds, as after an answer 429."""
        if not self.rates:
            raise LockUsageError(f"the run under lock {self.name!r} has no rate to push back")
        for rate in self.rates:
            self.backend.push_back(rate, seconds)

    def release(self) -> bool:
        """Release the lock; a second call does nothing. Return True if it was ours until now.

        False: it was not; or the server's reply was lost, and the repeated call found nothing.
        """
        return bool(self.backend.release(self))


class AsyncLease(BaseLease):
    """A lease with awaitable methods."""

    def renew(self, ttl: float | None = None) -> Awaitable[None]:
        """Do as ``Lease.renew``."""
        awaitable: Awaitable[None] = self.backend.renew(self, ttl)
        return awaitable

    def release(self) -> Awaitable[bool]:
        """Do as ``Lease.release``."""
        awaitable: Awaitable[bool] = self.backend.release(self)
        return awaitable
