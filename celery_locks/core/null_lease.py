"""``self.lock`` where there is none."""

from __future__ import annotations

import time

from celery_locks.core.lease import State, StopCallback


class NullLease:
    """What ``self.lock`` is where a task runs without a lock, as it was told it may.

    It has what the user's code may ask of a lease, as of one that is never lost nor to be stopped.
    """

    name = token = reason = ""
    fence = renewals = 0
    limit = 1
    at_least = held_for = 0.0
    ttl = remaining = deadline = float("inf")
    state = State.HELD
    stop_requested = False
    on_stop: StopCallback | None = None
    task: str | None = None
    task_id: str | None = None
    owner = None

    @property
    def acquired_at(self) -> float:
        return time.time()

    def check(self) -> None:
        """Nothing to lose."""

    def renew(self, ttl: float | None = None) -> None:
        """Nothing to renew."""

    def release(self) -> bool:
        """Nothing to give back, and nobody had it meanwhile."""
        return True

    def __bool__(self) -> bool:
        return False
