"""The interface of all interrupters."""

from __future__ import annotations

from celery_locks.core.lease import BaseLease, Lease
from celery_locks.errors import LeaseLost, StopRequested

Interruption = LeaseLost | StopRequested


class Interrupter:
    """Raises a loss or a stop request in one run of a task.

    It is created in the run's thread before the lock is acquired. ``arm`` is called before the
    task's own code and ``disarm`` after it; errors are raised only in between. ``on_lost`` and
    ``on_stop`` are the lease's callbacks, called in any thread. This base class raises nothing
    (eventlet).
    """

    _raises_loss = _raises_stop = False

    def arm(self, lease: Lease, *, raise_loss: bool, raise_stop: bool = False) -> None:
        self._raises_loss, self._raises_stop = raise_loss, raise_stop

    def disarm(self) -> None:
        self._raises_loss = self._raises_stop = False

    def on_lost(self, lease: BaseLease, error: LeaseLost) -> None:
        if self._raises_loss:
            self._deliver(error)

    def on_stop(self, lease: BaseLease, error: StopRequested) -> None:
        if self._raises_stop:
            self._deliver(error)

    def _deliver(self, error: Interruption) -> None:
        """Raise it in the task, from another thread: in its own thread ``check()`` raises."""
