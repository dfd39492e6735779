"""Lock events and their subscribers.

Each event is also a line in the log (``logs.py``), if the logger is enabled for its level. Metrics
and traces subscribe here. The failure of a subscriber is logged at most once a minute and never
prevents a release. An event is made only if a subscriber or the logger wants it.

Where events occur with a prefork worker: what a task does to its lock (acquired, conflict,
released, skipped, requeued, limited, unlocked, and lost) in the child, in the task's own thread;
renewed, suspended and freed in the worker's main process, in a background thread; duplicate, and
the reservation of a message, in the process that publishes. With the other pools everything is in
one process, but lost, stop and renewed come from a background thread.
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
    "limits_differ",
    "released",
    "renewed",
    "suspended",
    "revived",
    "reasserted",
    "lost",
    "stop",
    "already_done",
    "unavailable",
    "skipped",
    "requeued",
    "parked",
    "woken",
    "recovered",
    "limited",
    "duplicate",
    "unlocked",
    "freed",
]


@dataclass(frozen=True, slots=True)
class LockEvent:
    """An event of the lock ``name``; ``token`` and ``fence`` identify the lease.

    ``detail`` depends on the kind: ``task`` and ``task_id`` if a task is concerned, ``waited``,
    ``held_for``, ``policy``, ``why``, ``conflict`` …
    """

    kind: EventKind
    name: str
    token: str = ""
    fence: int = 0
    at: float = field(default_factory=time.time)
    detail: dict[str, Any] = field(default_factory=dict)


# The level of kinds that are not logged; below every level that can be set.
_NEVER = -1
_level, _is_logged = logs.LEVELS.get, logger.isEnabledFor
Subscriber = Callable[[LockEvent], None]
_subscribers: tuple[Subscriber, ...] = ()
_reports = logs.Reports()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` with every event from now on; the returned function unsubscribes it.

    It is called where the event occurs, sometimes in the thread that renews the leases of this
    process: hand slow work to another thread.
    """
    global _subscribers
    _subscribers = (*_subscribers, subscriber)
    return lambda: _unsubscribe(subscriber)


def _unsubscribe(subscriber: Subscriber) -> None:
    global _subscribers
    _subscribers = tuple(s for s in _subscribers if s is not subscriber)


def is_wanted(kind: EventKind) -> bool:
    """Return True if a subscriber or the logger wants this kind; lets hot paths skip the event."""
    return bool(_subscribers) or _is_logged(_level(kind, _NEVER))


def emit(kind: EventKind, name: str, token: str = "", fence: int = 0, **detail: Any) -> None:
    """Log the event and call the subscribers; never raise."""
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
