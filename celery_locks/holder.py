"""Who holds a lock or waits for it: task, worker, process. No I/O.

``Holder`` is a tuple because every acquire makes one: a frozen dataclass of that many fields takes
several times as long to make. ``types.py`` offers it too.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

from celery_locks.forking import run_after_fork
from celery_locks.printable_text import printable

REPLACED = 1_000_000  # more than the retries of any task
RESERVATION_PREFIX = "q"  # begins the token of a message in the queue; others are hexadecimal
PARKED_PREFIX = "k"  # begins that of a parked message; ``is_parked`` in overrides.lua is the same

# The default of ``Holder.extra``; nobody writes into it.
_NOTHING: Mapping[str, Any] = {}


class Holder(NamedTuple):
    """A holder of a lock, or a waiter for it.

    ``token`` identifies this execution and ``fence`` is its number; the other fields say where it
    runs. ``task_id`` with ``attempt`` lets a later attempt of the same job take the lock over.
    ``replaced`` counts how often the job replaced itself (``self.replace``), which keeps the id and
    restarts with 0 retries. ``owner`` is the thread, greenlet or asyncio task that is blocked while
    it waits (``owners.py``). A ``nested`` hold was acquired by the code of the task that it names
    and is not the task's own lock: no attempt takes it over. ``shared``: others may share it.
    ``also``: the further locks that it acquired together with this one.
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
    shared: bool = False
    also: tuple[str, ...] = ()

    @property
    def job_id(self) -> str | None:
        """The id that copies and attempts of one message share."""
        return None if self.nested else self.task_id

    @property
    def is_kept(self) -> bool:
        """True if the work has ended and the slot only stays taken for ``at_least``."""
        return self.token.startswith("-")

    @property
    def is_running(self) -> bool:
        """True if somebody works under the lock: it is neither queued nor kept nor parked."""
        return not (self.is_queued or self.is_kept or self.is_parked)

    @property
    def is_parked(self) -> bool:
        """True for a message that waits for the lock on the lock server, without a process.

        Once it is woken it holds the lock as a queued message.
        """
        return not self.fence and self.was_parked

    @property
    def was_parked(self) -> bool:
        """True for a message that is parked, or was woken and has not started."""
        return self.token.startswith(PARKED_PREFIX)

    def kind_of_token(self) -> dict[str, str]:
        """Return only what ``is_queued`` and ``is_kept`` need of the token."""
        return (
            {"token": self.token[0]}
            if self.token[:1] in (RESERVATION_PREFIX, PARKED_PREFIX, "-")
            else {}
        )

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
        who = f"task {self.task or ''}[{self.task_id}]" if self.task_id else self.task
        where = self.worker or self.host or "an unknown host"
        return printable(f"{who or 'a process'} on {where}, pid {self.pid}")

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
            **({"shared": True} if self.shared else {}),
            **({"also": list(self.also)} if self.also else {}),
            **({"parked": True} if self.is_parked else {}),
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
        if self.extra or self.nested or self.also:
            also = {"also": self.also} if self.also else {}
            nested = {"task_id": self.task_id} if self.nested else {}
            extra = {"extra": dict(self.extra)} if self.extra else {}
            return _about(self.task, self.worker, self.host, self.pid, **nested, **extra, **also)
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
