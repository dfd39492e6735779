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
from typing import Any, NamedTuple, Self

from celery_locks.errors import LockUsageError

NAME_BYTES = 512
HISTORY_TEXT = 500  # characters of who did something, and of why
MIN_TTL = 1.0
DEFAULT_TTL = 30.0
REPLACED = 1_000_000  # more than the retries of any task
TIME_TO_STOP = 5.0  # seconds, for a holder that knows that it should
QUEUED_TOKEN = "q"  # how the token of a message in the queue begins; others are hexadecimal


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
        wait: float | None = None,
        at_least: float = 0.0,
    ) -> Self:
        check_name(name)
        check_ttl(ttl)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise LockUsageError(
                f"limit of lock {name!r} is {limit!r}; it must be a whole number from 1"
            )
        if wait is not None:
            check_seconds("wait", wait)
        check_seconds("at_least", at_least)
        return super().__new__(cls, name, ttl, limit, wait, at_least)

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


def check_ttl(ttl: object) -> None:
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not math.isfinite(ttl):
        raise LockUsageError(f"ttl must be a finite number of seconds, not {ttl!r}")
    if ttl < MIN_TTL:
        raise LockUsageError(
            f"ttl is {ttl!r} s; below {MIN_TTL:g} s there is no time to renew it. "
            "A lock is given back at once when its work ends: a longer ttl costs nothing"
        )


def check_seconds(option: str, value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise LockUsageError(f"{option} must be a number of seconds from 0, not {value!r}")


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

    @property
    def is_kept(self) -> bool:
        """Whether its work has ended and the slot is only kept a while (``at_least``)."""
        return self.token.startswith("-")

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
        return self.retries < 0 or self.token.startswith(QUEUED_TOKEN)

    def __str__(self) -> str:
        who = f"task {self.task or ''}[{self.task_id}]" if self.task_id else "a process"
        where = self.worker or self.host or "an unknown host"
        return f"{who} on {where}, pid {self.pid}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe, for results, logs and surfaces."""
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
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Self:
        """What ``as_dict`` made, also by another version of this library."""
        return cls(**{word: value for word, value in said.items() if word in cls._fields})

    def about(self) -> str:
        """The part that is stored as said; task id and retries have fields of their own."""
        if self.extra:
            return _about(self.task, self.worker, self.host, self.pid, extra=dict(self.extra))
        return _usual_about(self.task, self.worker, self.host, self.pid)


def _about(
    task: str | None, worker: str | None, host: str | None, pid: int | None, **extra: Any
) -> str:
    said = {"task": task, "worker": worker, "host": host, "pid": pid, **extra}
    return json.dumps({key: value for key, value in said.items() if value})


# A process runs the same few tasks over and over.
_usual_about = lru_cache(maxsize=1024)(_about)


@cache
def this_process() -> Holder:
    """The holder that plain code (no task) presents itself as."""
    return Holder(host=socket.gethostname(), pid=os.getpid())


os.register_at_fork(after_in_child=this_process.cache_clear)


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
        at_work = [one.ttl for one in self.holders if not one.is_queued and not one.is_kept]
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
class Act:
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
    """What an operator said when taking a lock from its holder."""

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


@dataclass(frozen=True, slots=True)
class Conflict:
    """The fact that a lock was busy: by whom, and when at the latest it may come free."""

    name: str
    holders: tuple[Holder, ...]
    lapses_in: float
    position: int
    as_of: float = 0.0
    ticket: int = 0  # our place in line, from the counter that fences come from

    @property
    def age(self) -> float:
        """Seconds that the first holder has had it, by the server's clock."""
        return max(0.0, self.as_of - self.holders[0].acquired_at) if self.holders else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe, and ``from_dict`` makes an equal one of it."""
        holders = [holder.as_dict() for holder in self.holders]
        return {
            "name": self.name,
            "holders": holders,
            "lapses_in": self.lapses_in,
            "position": self.position,
            "as_of": self.as_of,
        }

    def has_twin_of(self, task_id: str | None, attempt: int) -> bool:
        """Whether a holder runs this very message of the job, or a later one."""
        return task_id is not None and any(
            holder.task_id == task_id and holder.attempt >= attempt for holder in self.holders
        )

    @property
    def is_behind_messages(self) -> bool:
        """Nobody is at work: only messages in the queue have it."""
        return bool(self.holders) and all(holder.is_queued for holder in self.holders)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Self:
        holders = tuple(Holder.from_dict(holder) for holder in said["holders"])
        as_of = said.get("as_of", 0.0)
        return cls(said["name"], holders, said["lapses_in"], said["position"], as_of)

    def __str__(self) -> str:
        by = f"held by {self.holders[0]}" if self.holders else "held"
        more = f" and {len(self.holders) - 1} more" if len(self.holders) > 1 else ""
        return (
            f"lock {self.name!r} is {by}{more}; it lapses in {self.lapses_in:.1f} s if not renewed"
        )
