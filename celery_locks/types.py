"""Frozen values that the layers hand to each other; no I/O, no rules but their own validity.

What every acquire makes (``LockSpec``, ``Holder``) are tuples: a frozen dataclass of so many fields
takes several times as long to make.

Times here are wall-clock seconds by the lock server's clock, for people to read. Deadlines that
code relies on are elsewhere (``lease.py``) and on another clock.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, Self, TypeGuard

from celery_locks.errors import LockUsageError
from celery_locks.forking import run_after_fork
from celery_locks.text import printable

DEFAULT_PREFIX = "celery-locks"
NAME_BYTES = 512
HISTORY_TEXT = 500  # characters of who did something, and of why
MIN_TTL = 1.0
DEFAULT_TTL = 30.0
MAX_SECONDS = 10 * 365 * 86400.0  # of any option: the server counts in milliseconds
MAX_LIMIT = 1_000_000
REPLACED = 1_000_000  # more than the retries of any task
# The locks that this library makes beside those that users name. No user's name ends so.
QUEUED = " (queued)"  # of a message, from publish to start
CLAIMED = " (claim)"  # around the creation of a claim's value
RESERVED_ENDINGS = (QUEUED, CLAIMED)
TIME_TO_STOP = 5.0  # seconds, for a holder that knows that it should
RESERVATION_PREFIX = "q"  # how the token of a message in the queue begins; others are hexadecimal


FOREVER = MAX_SECONDS  # what ``wait="forever"`` means
Wait = float | Literal["forever"]

HELD_BY_CALLER = (
    "The caller holds it already: pass reentrant=True to hold() or acquire() to enter it again, "
    "or acquire it once only"
)
# Of those who say nothing extra; nobody writes into it.
_NOTHING: Mapping[str, Any] = {}


class _Spec(NamedTuple):
    name: str
    ttl: float
    limit: int
    wait: float | None
    at_least: float


class LockSpec(_Spec):
    """What is asked for: one lock, by name, and how it is to be held."""

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
        """The same for another lock; only the name is new, and checked."""
        check_name(name)
        return tuple.__new__(type(self), (name, *self[1:]))


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise LockUsageError(f"a lock's name must be a text that is not empty, not {name!r}")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError as error:
        raise LockUsageError(f"the lock name {name!r} has no UTF-8 form: {error.reason}") from None
    if size > NAME_BYTES:
        raise LockUsageError(
            f"the lock name {name[:40]!r}… is {size} bytes long; {NAME_BYTES} is the most"
        )


def check_not_reserved(name: object) -> None:
    """Refuse to users the names that only this library gives."""
    if isinstance(name, str) and name.endswith(RESERVED_ENDINGS):
        raise LockUsageError(
            f"the lock name {name!r} ends as those that celery-locks makes itself "
            f"({', '.join(map(repr, RESERVED_ENDINGS))}); choose another name"
        )


def check_ttl(ttl: object, option: str = "ttl") -> None:
    if not _is_finite(ttl):
        raise LockUsageError(f"{option} must be a finite number of seconds, not {ttl!r}")
    _check_not_too_long(option, ttl)
    if ttl < MIN_TTL:
        raise LockUsageError(
            f"{option} is {ttl!r} s; below {MIN_TTL:g} s there is no time to renew it. "
            "A lock is given back at once when its work ends: a longer ttl costs nothing"
        )


def check_limit(limit: object, option: str = "limit") -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise LockUsageError(
            f"{option} is {limit!r}; it must be a whole number from 1 to {MAX_LIMIT}"
        )


def patience_of(wait: object) -> float | None:
    """Seconds to wait for a busy lock; None: not at all."""
    if wait == "forever":
        return FOREVER
    if wait is not None and not _is_seconds(wait):
        raise LockUsageError(f"wait must be a number of seconds from 0, or 'forever', not {wait!r}")
    if wait is not None:
        _check_not_too_long("wait", wait)
    return wait


def check_seconds(option: str, value: object) -> None:
    if not _is_seconds(value):
        raise LockUsageError(f"{option} must be a number of seconds from 0, not {value!r}")
    _check_not_too_long(option, value)


def _check_not_too_long(option: str, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise LockUsageError(f"{option} is above ten years ({MAX_SECONDS:.0f} s), the most")


def _is_seconds(value: object) -> TypeGuard[float]:
    return _is_finite(value) and value >= 0


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def history_text(option: str, text: object) -> str:
    """A text for the history: what cannot be stored is refused, what is too long is cut."""
    if not isinstance(text, str):
        raise LockUsageError(f"{option} must be a text, not a {type(text).__name__}")
    kept = text[:HISTORY_TEXT]
    try:
        kept.encode()
    except UnicodeEncodeError as error:
        raise LockUsageError(f"{option} {kept[:40]!r} has no UTF-8 form: {error.reason}") from None
    return kept


class Holder(NamedTuple):
    """Who has a lock, or waits for it.

    ``token`` is this execution and ``fence`` its number; the rest says where to look for it.
    ``task_id`` with ``attempt`` lets a later attempt of the same job take the lock over.
    ``replaced`` counts the times that the job replaced itself (``self.replace``), which keeps the
    id and begins anew with 0 retries.
    ``owner`` is the thread, greenlet or asyncio task that cannot go on while it waits
    (``owners.py``). A ``nested`` hold was acquired by the code of the task that it names, and is
    not the task's own lock: no attempt takes it over.
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
        """The id by which copies and attempts of one message know each other."""
        return None if self.nested else self.task_id

    @property
    def is_kept(self) -> bool:
        """Whether its work has ended and the slot is only kept a while (``at_least``)."""
        return self.token.startswith("-")

    def kind_of_token(self) -> dict[str, str]:
        """Enough of a token for ``is_queued`` and ``is_kept``, and nothing that opens a lock."""
        return {"token": self.token[0]} if self.token[:1] in (RESERVATION_PREFIX, "-") else {}

    @property
    def renewals(self) -> int:
        """About how often it was renewed, reckoned: renewals come every third of the ttl.

        The store keeps no count, which would cost a write with each. Those that came early, along
        with another lease's, make it a few more than reckoned.
        """
        if self.is_kept or self.is_queued or not self.fence or not self.ttl:
            return 0
        last = self.expires_at - self.ttl
        return max(0, round((last - self.acquired_at) / (self.ttl / 3)))

    @property
    def attempt(self) -> int:
        """One number that grows with every message of the job; 0 while the first is only queued."""
        return self.replaced * REPLACED + self.retries + 1

    @property
    def is_queued(self) -> bool:
        """A message that waits to begin, or to begin again; nobody is at work."""
        return self.retries < 0 or self.token.startswith(RESERVATION_PREFIX)

    def __str__(self) -> str:
        who = f"task {self.task or ''}[{self.task_id}]" if self.task_id else "a process"
        where = self.worker or self.host or "an unknown host"
        return printable(f"{who} on {where}, pid {self.pid}")

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe, for logs and the surfaces of operators."""
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
        """The same for results and events, which anybody may read: without the token."""
        fields = self.as_dict()
        del fields["token"]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """What ``as_dict`` made, also by another version of this library."""
        return cls(**{name: value for name, value in fields.items() if name in cls._fields})

    def about(self) -> str:
        """The part that is stored as fields; a job's id and retries have fields of their own."""
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


# A process runs the same few tasks over and over.
_usual_about = lru_cache(maxsize=1024)(_about)


@cache
def this_process() -> Holder:
    """The holder that plain code (no task) presents itself as."""
    return Holder(host=socket.gethostname(), pid=os.getpid())


run_after_fork(this_process.cache_clear, "ground")


@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock as the store had it at one moment."""

    name: str
    limit: int
    holders: tuple[Holder, ...]
    waiters: tuple[Holder, ...] = ()
    as_of: float = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the first holder would lapse if it stopped renewing."""
        return (
            max(0.0, min(h.expires_at for h in self.holders) - self.as_of) if self.holders else 0.0
        )

    @property
    def default_grace(self) -> float:
        """Seconds to give its holders after asking them to stop; 0 if nobody is at work.

        They learn of it at their next renewal, within a third of the ttl, and then have to end.
        """
        at_work = [it.ttl for it in self.holders if not (it.is_queued or it.is_kept)]
        return math.ceil(max(at_work) / 3) + TIME_TO_STOP if at_work else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe, for surfaces."""
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
    """What an operator did to a lock, or a hold that ended: when, who, why, and whose it was.

    ``act`` is "force_release", "stop" or "reset" (done work may be done again), with ``by`` whom;
    or "held" (``why``, if not by its own release) or "lapsed", with ``held_for`` in seconds.
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
        """JSON-safe, for surfaces."""
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
    """What an operator fields when taking a lock from its holder."""

    by: str
    why: str


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A lock and one of its holders: something that runs now, and where."""

    name: str
    holder: Holder

    def is_on(self, worker: str | None) -> bool:
        """On this worker (its node name) or, for plain processes, on this host; None: anywhere."""
        return worker is None or worker in (self.holder.worker, self.holder.host)


class Blocker(NamedTuple):
    """A lock that is waited for, and a holder of it that cannot go on either."""

    name: str
    holder: Holder

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "holder": self.holder.as_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["name"], Holder.from_dict(fields["holder"]))


@dataclass(frozen=True, slots=True)
class Conflict:
    """The fact that a lock was busy: by whom, and when at the latest it may come free.

    ``is_own``: the caller itself holds it. ``cycle`` is what a deadlock consists of: the lock and
    its holder, the lock that this holder waits for and its holder, and so on to the caller.
    """

    name: str
    holders: tuple[Holder, ...]
    lapses_in: float
    position: int
    as_of: float = 0.0
    ticket: int = 0  # our place in line, from the counter that fences come from
    is_own: bool = False
    cycle: tuple[Blocker, ...] = ()

    @property
    def age(self) -> float:
        """Seconds that the first holder has had it, by the server's clock."""
        return max(0.0, self.as_of - self.holders[0].acquired_at) if self.holders else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe, and ``from_dict`` makes one of it that is equal but for the tokens.

        It becomes a task's result, so of a token there is no more than what kind it is.
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
        """Whether a holder runs this very message of the job, or a later one."""
        return task_id is not None and any(
            holder.job_id == task_id and holder.attempt >= attempt for holder in self.holders
        )

    @property
    def is_behind_messages(self) -> bool:
        """Nobody is at work: only messages in the queue have it."""
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
