"""All errors of this library, in one tree.

::

    LockError
    ├── LockConflict               others hold the lock
    │   ├── AlreadyQueued          at publish: the same call waits or runs already
    │   ├── LockDeadlock           waiting for it would never end: its holder waits for us
    │   └── TaskLockAcquireError   the same, from task_lock_context
    ├── LeaseLost                  the lease ended while its holder was still running
    │   └── LockRevoked            an operator took the lock from it
    ├── RateLimited                a rate allows no start before some time
    ├── StopRequested              the holder is asked to stop; the lock is still its own
    ├── AlreadyDone                the work for this key is done, and its result was not kept
    ├── LockUnavailable            the lock server gave no usable answer
    │   ├── ServerReadOnly         it is a replica, or refuses writes
    │   ├── ServerOutOfMemory      it reached maxmemory
    │   ├── ServerRefused          password, permission or certificate
    │   ├── ServerTooOld           a version below the minimum
    │   └── ForeignData            one of our keys holds somebody else's data
    └── LockUsageError             wrong input, also a ValueError

The message of each is a sentence: what happened, to which lock, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from celery_locks.printable_text import printable

if TYPE_CHECKING:
    from celery_locks.types import Blocker, Conflict, Holder, Override


class LockError(Exception):
    """The root of the tree."""


class LockConflict(LockError):
    """Others hold the lock, and our patience (if any) is over."""

    def __init__(self, conflict: Conflict | Mapping[str, Any]) -> None:
        """Accept a mapping too: a JSON result backend restores an error from plain arguments."""
        from celery_locks.types import Conflict

        if not isinstance(conflict, Conflict):
            conflict = Conflict.from_dict(conflict)
        super().__init__(conflict.as_dict())
        self.conflict = conflict

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the same arguments that a JSON result backend gets: no tokens."""
        return type(self), self.args

    @property
    def name(self) -> str:
        return self.conflict.name

    @property
    def holders(self) -> tuple[Holder, ...]:
        return self.conflict.holders

    @property
    def holder(self) -> Holder | None:
        """The first of the holders; the only one unless the lock has a limit."""
        return self.conflict.holders[0] if self.conflict.holders else None

    def __str__(self) -> str:
        return str(self.conflict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class AlreadyQueued(LockConflict):
    """The same call is in the queue or running, or ``max_queued`` are; nothing was published."""

    @property
    def task_id(self) -> str | None:
        return self.holder.task_id if self.holder else None

    @property
    def age(self) -> float:
        """Seconds since the other call was published, or started."""
        return self.conflict.age

    def __str__(self) -> str:
        task_id = printable(str(self.task_id))
        return f"task {task_id} is queued or running for {self.age:.1f} s: {self.conflict}"


class LockDeadlock(LockConflict):
    """Waiting for the lock would never end: its holder waits for a lock that the caller holds.

    ``cycle`` names them. Only the waiter that started last gets the error; the others continue when
    it has released what it holds.
    """

    @property
    def cycle(self) -> tuple[Blocker, ...]:
        """The lock and its holder, the lock that this holder waits for, and so on to the caller."""
        return self.conflict.cycle

    def __str__(self) -> str:
        from celery_locks.types import HELD_BY_CALLER

        begin = f"waiting for lock {self.name!r} would never end"
        if len(self.cycle) == 1:
            return f"{begin}. {HELD_BY_CALLER}"
        steps = [
            f"held by {step.holder}, which waits for lock {following.name!r}"
            for step, following in pairwise(self.cycle)
        ]
        return (
            f"{begin}: it is {', '.join(steps)}, held by the caller, {self.cycle[-1].holder}. "
            "Acquire these locks in the same order everywhere"
        )


class TaskLockAcquireError(LockConflict):
    """``task_lock_context`` did not acquire its lock."""


class LeaseLost(LockError):
    """The lease ended while its holder was still running.

    Another holder may already be inside. Stop side effects; do not release.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"the lease on lock {self.name!r} is lost: {printable(self.reason)}"


class LockRevoked(LeaseLost):
    """An operator took the lock from its holder (``admin.force_release``).

    ``by`` is the operator and ``why`` the reason. As with any loss, stop side effects.
    """

    def __init__(self, name: str, by: str = "", why: str = "") -> None:
        reason = f"revoked by {by or 'somebody'}" + (f": {why}" if why else "")
        super().__init__(name, printable(reason))
        self.args = (name, by, why)  # a result backend restores it from these
        self.by = by
        self.why = why


class RateLimited(LockError):
    """A rate allows no start now; nothing was consumed. Try again after ``retry_after`` seconds.

    ``pause``: an operator paused it. If the pause has no end, ``retry_after`` is 30.
    """

    def __init__(
        self, name: str, retry_after: float, pause: Override | Mapping[str, Any] | None = None
    ) -> None:
        """Accept a mapping too: a JSON result backend restores an error from plain arguments."""
        from celery_locks.types import Override

        if isinstance(pause, Mapping):
            pause = Override.from_dict(pause)
        super().__init__(name, retry_after, *([pause.as_dict()] if pause else []))
        self.name = name
        self.retry_after = retry_after
        self.pause = pause

    def __str__(self) -> str:
        if self.pause:
            return f"the rate of {self.name!r} is {self.pause}"
        return f"the rate of {self.name!r} allows no start for {self.retry_after:.1f} s"


class StopRequested(LockError):
    """Somebody asked the holder of this lock to stop (``locks.stop``).

    The holder still has the lock, which is renewed until it is released: clean up and end.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the holder of lock {self.name!r} is asked to stop"


class AlreadyDone(LockError):
    """The work for this key is completed, and its result was not kept; or it failed.

    ``failure`` says when it failed and with which error, if that is known.
    """

    def __init__(self, name: str, reason: str = "already_done", failure: str = "") -> None:
        super().__init__(name, reason, failure)
        self.name = name
        self.reason = reason
        self.failure = failure

    def __str__(self) -> str:
        why = f"{self.reason}, {self.failure}" if self.failure else self.reason
        return f"the work of lock {self.name!r} is not done again: {printable(why)}"


class LockUnavailable(LockError):
    """The lock server gave no usable reply, so nobody knows whether the lock is free."""

    # An earlier try of the same call got no reply: the server may have executed it.
    may_have_executed = False
    # A retry does not help: a person has to correct a password, a permission, a certificate …
    is_permanent = False


class ServerReadOnly(LockUnavailable):
    """The lock server refuses writes: a replica, or a primary that lost its replicas."""


class ServerOutOfMemory(LockUnavailable):
    """The lock server reached maxmemory; held locks are still renewed and released."""


class ServerRefused(LockUnavailable):
    """The lock server refuses our password or permissions, or we its certificate."""

    is_permanent = True


class ServerTooOld(LockUnavailable):
    """The lock server is older than the scripts need."""

    is_permanent = True


class ForeignData(LockUnavailable):
    """A key under our prefix has data of another type; it is left unchanged."""

    is_permanent = True


class LockUsageError(LockError, ValueError):
    """Wrong input, refused where it is written."""
