"""One frozen event for everything that happens to a lock, and the list of who wants to know.

Each event is also a line in the log (``logs.py``), if that is wanted at its level. Metrics and
traces subscribe here; nothing below knows of them. A subscriber that fails is logged, once a
minute, and never stands in the way of a release. Events are made only when somebody subscribed or
reads the log.

Where they happen, seen with a prefork worker: whatever a task does to its lock (acquired, conflict,
released, skipped, requeued, unlocked, and lost) in the child, in the task's own thread; renewed,
suspended and freed in the worker's main process, in the keeper's thread; duplicate, and the lock of
a message in the queue, in the process that publishes. With the other pools all is in one process,
but lost, stop and renewed come from the keeper's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from celery_locks import logs

logger = logging.getLogger("celery_locks")

EventKind = Literal[
    "acquired",
    "conflict",
    "deadlock",
    "released",
    "renewed",
    "suspended",
    "revived",
    "lost",
    "stop",
    "already_done",
    "unavailable",
    "skipped",
    "requeued",
    "duplicate",
    "unlocked",
    "freed",
]


@dataclass(frozen=True, slots=True)
class LockEvent:
    """Something happened to the lock ``name``; ``token`` and ``fence`` say to which lease.

    ``detail`` has what the kind calls for: ``task`` and ``task_id`` where a task is concerned,
    ``waited``, ``held_for``, ``policy``, ``why``, ``conflict`` …
    """

    kind: EventKind
    name: str
    token: str = ""
    fence: int = 0
    at: float = field(default_factory=time.time)
    detail: dict[str, Any] = field(default_factory=dict)


# The level of what is no line in the log; below any that one can set.
_NEVER = -1
_level, _is_logged = logs.LEVELS.get, logger.isEnabledFor
Subscriber = Callable[[LockEvent], None]
_subscribers: tuple[Subscriber, ...] = ()
_reports = logs.Reports()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` with every event from now on; the returned function ends that.

    It is called where the event happens, sometimes in the thread that renews every lease of this
    process: hand slow work to another thread.
    """
    global _subscribers
    _subscribers = (*_subscribers, subscriber)
    return lambda: _unsubscribe(subscriber)


def _unsubscribe(subscriber: Subscriber) -> None:
    global _subscribers
    _subscribers = tuple(s for s in _subscribers if s is not subscriber)


def is_wanted(kind: EventKind) -> bool:
    """Whether anybody wants to know, for those to whom even the telling is too dear."""
    return bool(_subscribers) or _is_logged(_level(kind, _NEVER))


def emit(kind: EventKind, name: str, token: str = "", fence: int = 0, **detail: Any) -> None:
    """Write it down and tell the subscribers, if anybody wants to know; never raises."""
    if not is_wanted(kind):
        return
    event = LockEvent(kind, name, token, fence, detail=detail)
    is_logged = _is_logged(_level(kind, _NEVER))
    for subscriber in (logs.write, *_subscribers) if is_logged else _subscribers:
        try:
            subscriber(event)
        except Exception:  # noqa: BLE001
            who = repr(subscriber).replace("%", "%%")
            _reports.failure(f"subscriber {who} failed on %s of lock %r", kind, name)
