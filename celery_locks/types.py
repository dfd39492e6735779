"""Immutable values that all layers share. No I/O; a value checks only itself.

``LockSpec`` is a tuple because every acquire makes one: a frozen dataclass takes several times as
long to make.

Times are wall-clock seconds by the lock server's clock, for people to read. The deadlines that code
relies on are in ``core/lease.py`` and on another clock.

More than 300 lines: small values, each read by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from celery_locks.holder import PARKED_PREFIX as PARKED_PREFIX
from celery_locks.holder import REPLACED as REPLACED
from celery_locks.holder import RESERVATION_PREFIX as RESERVATION_PREFIX
from celery_locks.holder import Holder as Holder
from celery_locks.holder import this_process as this_process
from celery_locks.printable_text import printable
from celery_locks.validation import (
    MAX_LIMIT,
    Wait,
    check_flag,
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
SHARED_BY_CALLER = (
    "The caller itself shares it: a hold that is not shared cannot begin inside one that is. "
    "Acquire it once, without shared, around both"
)


class _Spec(NamedTuple):
    name: str
    ttl: float
    limit: int
    wait: float | None
    at_least: float


class LockSpec(_Spec):
    """A lock to acquire, by name, and the options of the hold. Limit 0: it is shared."""

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        ttl: float = DEFAULT_TTL,
        limit: int = 1,
        wait: Wait | None = None,
        at_least: float = 0.0,
        shared: bool = False,
    ) -> Self:
        check_name(name)
        check_ttl(ttl)
        if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
            check_limit(limit, f"limit of lock {name!r}")
        check_seconds("at_least", at_least)
        if shared is not False:
            check_flag("shared", shared)
            limit = 0
        return super().__new__(cls, name, ttl, limit, patience_of(wait), at_least)

    def limited(self, limit: int) -> Self:
        """Return the same spec with another limit, unless it is shared."""
        return self if self.shared else self._replace(limit=limit)

    @property
    def shared(self) -> bool:
        return self.limit == 0

    def named(self, name: str) -> Self:
        """Return the same spec for another lock; only the name is new, and checked."""
        check_name(name)
        return tuple.__new__(type(self), (name, *self[1:]))


def _utc(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Override:
    """What an operator set: the limit of a lock, a rate, or with neither of them a pause.

    ``until`` is None if it has no end. ``glob``: the pause is one of all names that match it.
    ``rate`` is as "10/m", or several with spaces between them. ``is_guard``: a pause that no
    operator set; the lock server lost its data, and holders from before may still run.
    """

    limit: int
    by: str
    why: str
    since: float
    until: float | None = None
    glob: str = ""
    rate: str = ""
    is_guard: bool = False

    @property
    def is_pause(self) -> bool:
        return not self.limit and not self.rate

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` described, also in another version of this library."""
        return cls(**{name: fields[name] for name in cls.__slots__ if name in fields})

    def __str__(self) -> str:
        if self.is_guard and self.until is not None:
            return f"not granted until {_utc(self.until)}: {self.why}"
        limit = " and ".join(self.rate.split()) or self.limit
        what = f"limited to {limit}" if limit else "paused"
        pattern = f" (all names that match {self.glob!r})" if self.glob else ""
        ends = ""
        if self.until is not None:
            ends = f", until {_utc(self.until)}"
        why = f": {printable(self.why)}" if self.why else ""
        return f"{what} by {printable(self.by) or 'somebody'}{pattern}{ends}{why}"


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The state of one lock at one moment.

    ``limit`` is the operator's if one is set, else the first holder's or waiter's, 0 if there is
    none because that one shares the lock; ``other_limits`` are those of the others that have
    another one. ``pause`` and ``limit_override`` are what operators set. ``shared``: its holders
    share it; without holders, its first waiter wants to. ``waiters`` has the first 100, and
    ``parked`` is how many messages wait in the whole queue.
    """

    name: str
    limit: int
    holders: tuple[Holder, ...]
    waiters: tuple[Holder, ...] = ()
    as_of: float = 0.0
    pause: Override | None = None
    limit_override: Override | None = None
    other_limits: tuple[int, ...] = ()
    shared: bool = False
    parked: int = 0

    @property
    def waiting(self) -> int:
        """How many wait: the parked messages, and the processes among the first 100."""
        return self.parked + sum(not waiter.is_parked for waiter in self.waiters)

    @property
    def oldest_parked(self) -> float | None:
        """Since when the first parked message waits; None if there is none."""
        return min((it.acquired_at for it in self.waiters if it.is_parked), default=None)

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
            "pause": self.pause.as_dict() if self.pause else None,
            "limit_override": self.limit_override.as_dict() if self.limit_override else None,
            "other_limits": list(self.other_limits),
            "shared": self.shared,
            "default_grace": self.default_grace,
            "holders": [holder.as_dict() for holder in self.holders],
            "waiters": [waiter.as_dict() for waiter in self.waiters],
            "waiting": self.waiting,
            "parked": self.parked,
            "remaining": self.remaining,
            "as_of": self.as_of,
        }


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An action of an operator on a lock, or a hold that ended.

    ``act`` is "force_release", "stop", "reset" (completed work may run again), "pause", "resume",
    "limit" (with ``limit``), "limit_reset" or "purge" (of ``count`` parked messages, the first of
    them in ``holders``), with the operator in ``by``; a pause or limit that ends by itself has
    ``until``. The same for rates is "rate_pause", "rate_resume", "rate" (with ``rate``) and
    "rate_reset". Or it is "held" (with ``why`` if it did not end by its own release) or "lapsed",
    both with ``held_for`` in seconds.
    """

    id: str
    at: float
    act: str
    name: str
    by: str
    why: str
    holders: tuple[Holder, ...] = ()
    held_for: float | None = None
    limit: int | None = None
    until: float | None = None
    count: int | None = None
    rate: str = ""

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
            "limit": self.limit,
            "until": self.until,
            "count": self.count,
            "rate": self.rate,
            "holders": [holder.as_dict() for holder in self.holders],
        }


class DelayedCaller(NamedTuple):
    """A caller with a promised start; ``task_id`` is None for one that is no task.

    ``starts_in`` is below 0 if its start has passed and it has not come. Unless it ``is_promised``,
    because the rate was paused when it came, it only asks again then.
    """

    task_id: str | None
    starts_in: float
    is_promised: bool = True


@dataclass(frozen=True, slots=True)
class RateInfo:
    """The state of one rate at one moment.

    ``free_in``: seconds until a caller that comes now may start. ``pushed_back``: seconds for which
    ``push_back`` lets nothing start. ``delayed``: how many callers have a promised start, or come
    back because it is paused; ``callers`` has the first. ``pause`` and ``rate_override`` are what
    operators set; ``limits`` are those of the last caller.
    """

    name: str
    limits: tuple[str, ...]
    free_in: float
    pushed_back: float = 0.0
    delayed: int = 0
    callers: tuple[DelayedCaller, ...] = ()
    as_of: float = 0.0
    pause: Override | None = None
    rate_override: Override | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields."""
        return {
            "name": self.name,
            "limits": list(self.limits),
            "free_in": self.free_in,
            "pushed_back": self.pushed_back,
            "pause": self.pause.as_dict() if self.pause else None,
            "rate_override": self.rate_override.as_dict() if self.rate_override else None,
            "delayed": self.delayed,
            "callers": [caller._asdict() for caller in self.callers],
            "as_of": self.as_of,
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

    ``pause``: an operator paused it, or it is guarded; then there may be no holders.
    ``held_limit``: the limit of its holders, if that is another than the caller's, else 0.

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
    pause: Override | None = None
    held_limit: int = 0

    @property
    def shared(self) -> bool:
        """True if its holders share it."""
        return bool(self.holders) and self.holders[0].shared

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
            **({"pause": self.pause.as_dict()} if self.pause else {}),
        }

    def has_copy_of(self, task_id: str | None, attempt: int) -> bool:
        """Return True if a holder runs the same job, or is this message of it or a later one.

        A run of an earlier attempt from which this attempt could take over is not in a conflict.
        """
        return task_id is not None and any(
            holder.job_id == task_id and (holder.is_running or holder.attempt >= attempt)
            for holder in self.holders
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
            pause=Override.from_dict(fields["pause"]) if fields.get("pause") else None,
        )

    def __str__(self) -> str:
        if self.pause:
            return f"lock {self.name!r} is {self.pause}"
        if not self.holders:
            return f"lock {self.name!r} is next for others, which wait for it and for other locks"
        by = f"held by {self.holders[0]}"
        by = f"{by} (shared)" if self.shared else by
        more = f" and {len(self.holders) - 1} more" if len(self.holders) > 1 else ""
        own = f". {SHARED_BY_CALLER if self.shared else HELD_BY_CALLER}" if self.is_own else ""
        return (
            f"lock {self.name!r} is {by}{more}; "
            f"it lapses in {self.lapses_in:.1f} s if not renewed{own}"
        )
