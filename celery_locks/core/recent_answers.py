"""What was lately seen of some locks, for those who only want a hint and none of the round trip.

A hint is as old as its reader allows; nothing that happens meanwhile, here or elsewhere, makes it
newer. Small: names that nobody asked for lately make room.
"""

from __future__ import annotations

from celery_locks.clock import now
from celery_locks.validation import check_name, check_seconds

MOST = 10_000


class RecentAnswers:
    """Name → whether it was locked, and when that was asked."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, bool]] = {}

    def recall(self, name: str, max_age: float) -> bool | None:
        """What was seen no longer ago than ``max_age`` seconds, or None."""
        check_name(name)
        check_seconds("max_age", max_age)
        at, locked = self._seen.get(name, (-1e18, False))
        return locked if now() - at <= max_age else None

    def note(self, name: str, asked_at: float, locked: bool) -> bool:
        """As of before the question: its answer may be that old."""
        if len(self._seen) >= MOST:
            self._seen = {}
        self._seen[name] = (asked_at, locked)
        return locked
