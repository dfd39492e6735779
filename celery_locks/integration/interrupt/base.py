"""The interface of all interrupters."""

from __future__ import annotations

from celery_locks.core.lease import BaseLease, Lease
from celery_locks.errors import LeaseLost, StopRequested

Interruption = LeaseLost | StopRequested


class Interrupter:
    """Raises a loss or a stop request in one run of a task.

    It is created in the run's thread before the lock is acquired. ``arm`` is called before the
    task's own code and ``disarm`` after it; errors are raised only in between. ``lost`` and
    ``stop`` are the lease's callbacks, called in any thread. This base class raises nothing
    (eventlet).
    """

    _raises = _stops = False

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        self._raises, self._stops = raises, stops

    def disarm(self) -> None:
        self._raises = self._stops = False

    def lost(self, lease: BaseLease, error: LeaseLost) -> None:
        if self._raises:
            self._deliver(error)

    def stop(self, lease: BaseLease, error: StopRequested) -> None:
        if self._stops:
            self._deliver(error)

    def _deliver(self, error: Interruption) -> None:
        """Raise it in the task, from another thread: in its own thread ``check()`` raises."""
