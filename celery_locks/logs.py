"""The log: one line for each event, in the logger ``celery_locks``.

Every record has the event's fields as attributes, for formatters that write JSON: ``event``,
``lock``, ``token``, ``fence``, and those of ``task``, ``task_id``, ``waited``, ``held_for``,
``policy``, ``why``, ``holder`` … that the event has.

debug: normal operation. info: a task that did not run now, and why. warning: somebody should look.
error: locks do not work until a person corrects something. A renewal that succeeds is not logged.

Names, ids and reasons come from users and operators, so every text in a line is quoted or made
``printable``: nobody can forge a line. Failures that may repeat are logged through ``Reports``.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_locks.clock import now
from celery_locks.printable_text import printable

if TYPE_CHECKING:
    from celery_locks.events import LockEvent

logger = logging.getLogger("celery_locks")

LEVELS: Mapping[str, int] = {
    "acquired": logging.DEBUG,
    "conflict": logging.DEBUG,
    "released": logging.DEBUG,
    "revived": logging.INFO,
    "reasserted": logging.WARNING,
    "stop": logging.INFO,
    "skipped": logging.INFO,
    "requeued": logging.INFO,
    "parked": logging.INFO,
    "woken": logging.INFO,
    "limited": logging.INFO,
    "duplicate": logging.INFO,
    "already_done": logging.INFO,
    "deadlock": logging.WARNING,
    "limits_differ": logging.WARNING,
    "recovered": logging.WARNING,
    "suspended": logging.WARNING,
    "lost": logging.WARNING,
    "unavailable": logging.WARNING,
    "unlocked": logging.WARNING,
    "freed": logging.WARNING,
}

_SENTENCES: Mapping[str, str] = {
    "acquired": "lock %(lock)r is acquired after %(waited).3f s, with fence %(fence)d",
    "conflict": "could not acquire lock %(lock)r in %(waited).3f s: %(conflict)s",
    "deadlock": "%(who)s is in a deadlock: %(why)s",
    "limits_differ": (
        "lock %(lock)r is held with limit %(held_limit)s and asked for with limit %(limit)s: each "
        "caller is granted a slot by its own limit"
    ),
    "released": "lock %(lock)r is released after %(held_for).3f s",
    "revived": "the lease on lock %(lock)r was past its deadline and is ours again",
    "reasserted": (
        "the lock server lost the lease on lock %(lock)r, and has it again: "
        "nobody took it meanwhile"
    ),
    "stop": "the holder of lock %(lock)r is asked to stop",
    "skipped": "%(who)s is skipped: %(conflict)s",
    "requeued": ("%(who)s is put back for %(pause).1f s: %(why)s (lock %(lock)r)"),
    "parked": "%(who)s is parked, number %(position)s in the queue: %(why)s (lock %(lock)r)",
    "woken": "%(who)s is woken: it has lock %(lock)r and is published",
    "recovered": "%(who)s was lost by the broker and is published again (lock %(lock)r)",
    "limited": (
        "%(who)s is limited by rate %(rate)r (%(decision)s): it can start in %(pause).1f s, after "
        "%(ahead)s others (lock %(lock)r)"
    ),
    "duplicate": "%(who)s is a duplicate of a queued or running call (%(decision)s): %(conflict)s",
    "already_done": "%(who)s %(why)s (lock %(lock)r)",
    "suspended": (
        "lock %(lock)r could not be renewed, trying again for %(remaining).1f s: %(why)s"
    ),
    "lost": "the lease on lock %(lock)r is lost: %(why)s",
    "unavailable": "lock %(lock)r could not be asked for: %(why)s",
    "unlocked": "%(who)s %(does)s without lock %(lock)r: %(why)s",
    "freed": "process %(pid)s died holding lock %(lock)r: it is freed",
}


# For a release that came when others may already have had the lock.
_NO_LONGER_OURS = "lock %(lock)r was no longer ours to release, after %(held_for).3f s"
# For a rate that an operator paused.
_PAUSED_RATE = (
    "%(who)s is limited by rate %(rate)r (%(decision)s), which is %(paused)s; it may ask again in "
    "%(pause).1f s (lock %(lock)r)"
)


class _Values(dict[str, Any]):
    """The values of a sentence; a value that the event lacks does not prevent the line."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        # The lock's name is quoted by the sentence itself.
        return printable(value) if isinstance(value, str) and name != "lock" else value

    def __missing__(self, name: str) -> Any:
        return 0.0 if name in ("waited", "held_for", "pause", "remaining") else "?"


def write(event: LockEvent) -> None:
    """Log the event."""
    values = _Values(event.detail, lock=event.name, fence=event.fence, who=_who(event.detail))
    is_ours = event.detail.get("ours", True)
    sentence = _SENTENCES[event.kind] if is_ours else _NO_LONGER_OURS
    if event.kind == "limited" and "paused" in event.detail:
        sentence = _PAUSED_RATE
    logger.log(_level_of(event), sentence, values, extra=fields_of(event))


# When each permanent refusal was last logged as an error.
_reported: dict[str, float] = {}
_REPORT_EVERY = 60.0


# The locks whose different limits this process has logged.
_limits_differ: set[str] = set()


def _level_of(event: LockEvent) -> int:
    """Return the level; a permanent refusal, the same for every task, is an error once a minute.

    That the limits of a lock differ is logged once for each name.
    """
    if event.kind == "limits_differ":
        if event.name in _limits_differ:
            return logging.DEBUG
        if len(_limits_differ) >= 1000:
            _limits_differ.clear()
        _limits_differ.add(event.name)
    if not event.detail.get("permanent"):
        return LEVELS[event.kind]
    why = str(event.detail.get("why"))
    if time.monotonic() - _reported.get(why, -_REPORT_EVERY) < _REPORT_EVERY:
        return logging.DEBUG
    if len(_reported) > 100:
        _reported.clear()
    _reported[why] = time.monotonic()
    return logging.ERROR


def log_deferred_release(lock: str, why: object) -> None:
    """Log that a release is pending; no event, because nobody has to do anything."""
    fields = {"event": "release_deferred", "lock": lock, "why": str(why)}
    logger.warning(
        "lock %r is released as soon as possible: %s", lock, printable(str(why)), extra=fields
    )


def _who(detail: Mapping[str, Any]) -> str:
    task, task_id = detail.get("task"), detail.get("task_id")
    if not task:
        return "a call"
    return f"task {task}[{task_id}]" if task_id else f"task {task}"


class Reports:
    """Log lines that may repeat: each sentence at most once a minute.

    The next line says how many were left out.
    """

    _EVERY = 60.0
    _MOST = 1000

    def __init__(self) -> None:
        self._next_lines: dict[tuple[str, str], tuple[float, int]] = {}

    def warning(self, sentence: str, *args: object) -> None:
        self._log(logging.WARNING, (sentence, ""), args)

    def failure(self, sentence: str, *args: object) -> None:
        """Log the exception that is being handled, with its traceback."""
        kind = type(sys.exc_info()[1]).__name__
        self._log(logging.ERROR, (sentence, kind), args, exc_info=True)

    def _log(
        self, level: int, key: tuple[str, str], args: tuple[object, ...], exc_info: bool = False
    ) -> None:
        until, left_out = self._next_lines.get(key, (-math.inf, 0))
        if now() < until:
            self._next_lines[key] = (until, left_out + 1)
            return
        if len(self._next_lines) >= self._MOST:
            self._next_lines.clear()
        self._next_lines[key] = (now() + self._EVERY, 0)
        more = f" ({left_out} more of these since the last line)" if left_out else ""
        logger.log(level, key[0] + more, *args, exc_info=exc_info)


def fields_of(event: LockEvent) -> dict[str, Any]:
    """Return the event's fields as plain values."""
    detail = dict(event.detail)
    conflict = detail.pop("conflict", None)
    if conflict is not None and conflict.holders:
        detail["holder"] = conflict.holders[0].as_dict()
    about = {"event": event.kind, "lock": event.name, "token": event.token, "fence": event.fence}
    return about | {name: value for name, value in detail.items() if value is not None}
