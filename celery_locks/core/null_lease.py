"""The lease of a task that runs without a lock."""

from __future__ import annotations

import time

from celery_locks.core.lease import State, StopCallback


class NullLease:
    """The value of ``self.lock`` where a task runs without a lock.

    It has the public attributes of a lease that is never lost and never asked to stop.
    """

    name = token = reason = ""
    fence = renewals = 0
    limit = 1
    shared = False
    parts: tuple[()] = ()
    at_least = held_for = 0.0
    ttl = remaining = deadline = float("inf")
    state = State.HELD
    stop_requested = False
    on_stop: StopCallback | None = None
    task: str | None = None
    task_id: str | None = None
    owner = None
    rates = ()

    @property
    def acquired_at(self) -> float:
        return time.time()

    @property
    def fences(self) -> dict[str, int]:
        return {}

    def check(self) -> None:
        """Do nothing: it cannot be lost."""

    def renew(self, ttl: float | None = None) -> None:
        """Do nothing."""

    def push_back(self, seconds: float) -> None:
        """Do nothing."""

    def release(self) -> bool:
        """Return True: nobody else had it meanwhile."""
        return True

    def __bool__(self) -> bool:
        return False
