"""Immutable values that all layers share. No I/O; a value checks only itself.

``LockSpec`` and ``Holder`` are tuples because every acquire makes them: a frozen dataclass of that
many fields takes several times as long to make.

Times are wall-clock seconds by the lock server's clock, for people to read. The deadlines that code
relies on are in ``core/lease.py`` and on another clock.

The values refer to each other, so they are in one file although it is long.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

from celery_locks.forking import run_after_fork
from celery_locks.printable_text import printable
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
REPLACED = 1_000_000  # more than the retries of any task
TIME_TO_STOP = 5.0  # seconds that a holder has to end after it was asked to stop
RESERVATION_PREFIX = "q"  # begins the token of a message in the queue; others are hexadecimal

HELD_BY_CALLER = (
    "The caller holds it already: pass reentrant=True to hold() or acquire() to enter it again, "
    "or acquire it once only"
)
# The default of ``Holder.extra``; nobody writes into it.
_NOTHING: Mapping[str, Any] = {}


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


class Holder(NamedTuple):
    """A holder of a lock, or a waiter for it.

    ``token`` identifies this execution and ``fence`` is its number; the other fields say where it
    runs. ``task_id`` with ``attempt`` lets a later attempt of the same job take the lock over.
    ``replaced`` counts how often the job replaced itself (``self.replace``), which keeps the id and
    restarts with 0 retries. ``owner`` is the thread, greenlet or asyncio task that is blocked while
    it waits (``owners.py``). A ``nested`` hold was acquired by the code of the task that it names
    and is not the task's own lock: no attempt takes it over.
    """

    token: str = ""
    fence: int = 0
    task_id: str | None = None
    task: str | None = None
    retries: int = 0
    replaced: int = 0
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    extra: Mapping[str, Any] = _NOTHING
    ttl: float = 0.0
    acquired_at: float = 0.0
    expires_at: float = 0.0
    owner: str = ""
    nested: bool = False

    @property
    def job_id(self) -> str | None:
        """The id that copies and attempts of one message share."""
        return None if self.nested else self.task_id

    @property
    def is_kept(self) -> bool:
        """True if the work has ended and the slot only stays taken for ``at_least``."""
        return self.token.startswith("-")

    def kind_of_token(self) -> dict[str, str]:
        """Return only what ``is_queued`` and ``is_kept`` need of the token."""
        return {"token": self.token[0]} if self.token[:1] in (RESERVATION_PREFIX, "-") else {}

    @property
    def renewals(self) -> int:
        """The estimated number of renewals: one for every third of the ttl.

        The store keeps no count, which would cost a write with each renewal. Renewals that came
        early, together with those of another lease, make the true number a little higher.
        """
        if self.is_kept or self.is_queued or not self.fence or not self.ttl:
            return 0
        last = self.expires_at - self.ttl
        return max(0, round((last - self.acquired_at) / (self.ttl / 3)))

    @property
    def attempt(self) -> int:
        """A number that grows with every message of the job; 0 while the first is only queued."""
        return self.replaced * REPLACED + self.retries + 1

    @property
    def is_queued(self) -> bool:
        """True for a message that waits to start, or to start again; nothing runs."""
        return self.retries < 0 or self.token.startswith(RESERVATION_PREFIX)

    def __str__(self) -> str:
        who = f"task {self.task or ''}[{self.task_id}]" if self.task_id else "a process"
        where = self.worker or self.host or "an unknown host"
        return printable(f"{who} on {where}, pid {self.pid}")

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields for logs and for operators."""
        return {
            "token": self.token,
            "fence": self.fence,
            "task_id": self.task_id,
            "task": self.task,
            "retries": self.retries,
            "replaced": self.replaced,
            "worker": self.worker,
            "host": self.host,
            "pid": self.pid,
            "ttl": self.ttl,
            "acquired_at": self.acquired_at,
            "expires_at": self.expires_at,
            "renewals": self.renewals,
            **({"extra": dict(self.extra)} if self.extra else {}),
            **({"owner": self.owner} if self.owner else {}),
            **({"nested": True} if self.nested else {}),
        }

    def as_public_dict(self) -> dict[str, Any]:
        """Return the fields without the token, for results and events, which anybody may read."""
        fields = self.as_dict()
        del fields["token"]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the holder that ``as_dict`` described, also in another version of this library."""
        return cls(**{name: value for name, value in fields.items() if name in cls._fields})

    def about(self) -> str:
        """Return the JSON that the store keeps; the job's id and retries are stored beside it."""
        about = self._about()
        if not self.owner:
            return about
        return f'{about[:-1]}{", " if len(about) > 2 else ""}"owner": "{self.owner}"}}'

    def _about(self) -> str:
        if self.extra or self.nested:
            nested = {"task_id": self.task_id} if self.nested else {}
            extra = {"extra": dict(self.extra)} if self.extra else {}
            return _about(self.task, self.worker, self.host, self.pid, **nested, **extra)
        return _usual_about(self.task, self.worker, self.host, self.pid)


def _about(
    task: str | None, worker: str | None, host: str | None, pid: int | None, **extra: Any
) -> str:
    fields = {"task": task, "worker": worker, "host": host, "pid": pid, **extra}
    return json.dumps({key: value for key, value in fields.items() if value})


# Cached: a process runs the same few tasks again and again.
_usual_about = lru_cache(maxsize=1024)(_about)


@cache
def this_process() -> Holder:
    """Return the holder for code outside of any task."""
    return Holder(host=socket.gethostname(), pid=os.getpid())


run_after_fork(this_process.cache_clear, "ground")


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
