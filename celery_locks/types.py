"""Immutable values that all layers share. No I/O; a value checks only itself.

``LockSpec`` is a tuple because every acquire makes one: a frozen dataclass takes several times as
long to make.

Times are wall-clock seconds by the lock server's clock, for people to read. The deadlines that code
relies on are in ``core/lease.py`` and on another clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from celery_locks.holder import REPLACED as REPLACED
from celery_locks.holder import RESERVATION_PREFIX as RESERVATION_PREFIX
from celery_locks.holder import Holder as Holder
from celery_locks.holder import this_process as this_process
from celery_locks.validation import (
    MAX_LIMIT,
    Wait,
    check_limit,
    check_name,
    check_seconds,
    check_ttl,
    patience_of,
)

DEFAULT_PREFIX = "celery-locks"
DEFAULT_TTL = 30.0
TIME_TO_STOP = 5.0  # seconds that a holder has to end after it was asked to stop

HELD_BY_CALLER = (
    "The caller holds it already: pass reentrant=True to hold() or acquire() to enter it again, "
    "or acquire it once only"
)


class _Spec(NamedTuple):
    name: str
    ttl: float
    limit: int
    wait: float | None
    at_least: float


class LockSpec(_Spec):
    """A lock to acquire, by name, and the options of the hold."""

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        ttl: float = DEFAULT_TTL,
        limit: int = 1,
        wait: Wait | None = None,
        at_least: float = 0.0,
    ) -> Self:
        check_name(name)
        check_ttl(ttl)
        if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
            check_limit(limit, f"limit of lock {name!r}")
        check_seconds("at_least", at_least)
        return super().__new__(cls, name, ttl, limit, patience_of(wait), at_least)

    def named(self, name: str) -> Self:
        """Return the same spec for another lock; only the name is new, and checked."""
        check_name(name)
        return tuple.__new__(type(self), (name, *self[1:]))


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The state of one lock at one moment."""

    name: str
    limit: int
    holders: tuple[Holder, ...]
    waiters: tuple[Holder, ...] = ()
    as_of: float = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the first lease lapses if it is not renewed."""
        return (
            max(0.0, min(h.expires_at for h in self.holders) - self.as_of) if self.holders else 0.0
        )

    @property
    def default_grace(self) -> float:
        """Seconds to wait for the holders after asking them to stop; 0 if none of them runs.

        They learn of it at their next renewal, within a third of the ttl, and then need time.
        """
        ttls = [it.ttl for it in self.holders if not (it.is_queued or it.is_kept)]
        return math.ceil(max(ttls) / 3) + TIME_TO_STOP if ttls else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields."""
        return {
            "name": self.name,
            "limit": self.limit,
            "default_grace": self.default_grace,
            "holders": [holder.as_dict() for holder in self.holders],
            "waiters": [waiter.as_dict() for waiter in self.waiters],
            "remaining": self.remaining,
            "as_of": self.as_of,
        }


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An action of an operator on a lock, or a hold that ended.

    ``act`` is "force_release", "stop" or "reset" (completed work may run again), with the operator
    in ``by``; or "held" (with ``why`` if it did not end by its own release) or "lapsed", both with
    ``held_for`` in seconds.
    """

    id: str
    at: float
    act: str
    name: str
    by: str
    why: str
    holders: tuple[Holder, ...] = ()
    held_for: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields."""
        return {
            "id": self.id,
            "at": self.at,
            "act": self.act,
            "name": self.name,
            "by": self.by,
            "why": self.why,
            "held_for": self.held_for,
            "holders": [holder.as_dict() for holder in self.holders],
        }


class Revocation(NamedTuple):
    """The operator who took a lock from its holder, and the reason."""

    by: str
    why: str


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A lock and one of its holders: work that runs now."""

    name: str
    holder: Holder

    def is_on(self, worker: str | None) -> bool:
        """Return True if it runs on this worker (node name), or on this host; None means any."""
        return worker is None or worker in (self.holder.worker, self.holder.host)


class Blocker(NamedTuple):
    """A lock that somebody waits for, and a holder of it that is blocked too."""

    name: str
    holder: Holder

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "holder": self.holder.as_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["name"], Holder.from_dict(fields["holder"]))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A lock that is busy: its holders, and when at the latest it comes free.

    ``is_own``: the caller itself holds it. ``cycle`` describes a deadlock: the lock and its holder,
    the lock that this holder waits for and its holder, and so on to the caller.
    """

    name: str
    holders: tuple[Holder, ...]
    lapses_in: float
    position: int
    as_of: float = 0.0
    ticket: int = 0  # the waiter's position, from the counter that fences come from
    is_own: bool = False
    cycle: tuple[Blocker, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since the first holder acquired it, by the server's clock."""
        return max(0.0, self.as_of - self.holders[0].acquired_at) if self.holders else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields; ``from_dict`` restores all but the tokens.

        They become a task's result, so they contain only the kind of each token.
        """
        holders = [{**it.as_public_dict(), **it.kind_of_token()} for it in self.holders]
        return {
            "name": self.name,
            "holders": holders,
            "lapses_in": self.lapses_in,
            "position": self.position,
            "as_of": self.as_of,
            **({"is_own": True} if self.is_own else {}),
            **({"cycle": [step.as_dict() for step in self.cycle]} if self.cycle else {}),
        }

    def has_copy_of(self, task_id: str | None, attempt: int) -> bool:
        """Return True if a holder runs this same message of the job, or a later one."""
        return task_id is not None and any(
            holder.job_id == task_id and holder.attempt >= attempt for holder in self.holders
        )

    @property
    def is_behind_messages(self) -> bool:
        """True if only messages in the queue hold it, and nothing runs."""
        return bool(self.holders) and all(holder.is_queued for holder in self.holders)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        holders = tuple(Holder.from_dict(holder) for holder in fields["holders"])
        return cls(
            fields["name"],
            holders,
            fields["lapses_in"],
            fields["position"],
            fields.get("as_of", 0.0),
            is_own=fields.get("is_own", False),
            cycle=tuple(Blocker.from_dict(step) for step in fields.get("cycle", ())),
        )

    def __str__(self) -> str:
        by = f"held by {self.holders[0]}" if self.holders else "held"
        more = f" and {len(self.holders) - 1} more" if len(self.holders) > 1 else ""
        own = f". {HELD_BY_CALLER}" if self.is_own else ""
        return (
            f"lock {self.name!r} is {by}{more}; "
            f"it lapses in {self.lapses_in:.1f} s if not renewed{own}"
        )
