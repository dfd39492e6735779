"""Times in the forms that Celery accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery.utils.time import maybe_make_aware


def seconds_until(when: float | str | datetime | None, app: Any) -> float:
    """Return the seconds from now to a countdown, an ISO text or a time; 0 for None or the past.

    Celery takes a naive time for UTC, in every time zone.
    """
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        aware = maybe_make_aware(when, app.timezone)
        when = float((aware - datetime.now(UTC)).total_seconds())
    return max(0.0, float(when or 0.0))
