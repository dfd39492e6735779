"""One frozen event for everything that happens to a lock, and the list of who wants to know.

Logs, metrics and traces subscribe here; nothing below knows of them. A subscriber that fails is
logged and never stands in the way of a release. Events are made only when somebody subscribed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

logger = logging.getLogger("celery_locks")

Kind = Literal[
    "acquired",
    "conflict",
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
]


@dataclass(frozen=True, slots=True)
class LockEvent:
    """Something happened to the lock ``name``; ``token`` and ``fence`` say to which lease."""

    kind: Kind
    name: str
    token: str = ""
    fence: int = 0
    at: float = field(default_factory=time.time)
    detail: dict[str, Any] = field(default_factory=dict)


Subscriber = Callable[[LockEvent], None]
_subscribers: tuple[Subscriber, ...] = ()


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


def emit(kind: Kind, name: str, token: str = "", fence: int = 0, **detail: Any) -> None:
    """Tell the subscribers, if any; never raises."""
    if not _subscribers:
        return
    event = LockEvent(kind, name, token, fence, detail=detail)
    for subscriber in _subscribers:
        try:
            subscriber(event)
        except Exception:
            logger.exception("subscriber %r failed on %s of lock %r", subscriber, kind, name)
