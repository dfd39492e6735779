"""Counts the events of this process and adds them to the sums that the lock server keeps.

In a prefork pool the children acquire and release while the main process renews, and the publishers
see the duplicates; what one process counts is a part only, and a child is never scraped. So every
process sends what it has counted since the last time, every two seconds, and whoever is scraped
reads the sums. Shared memory between a worker and its children was the other way: it would spare
each child a thread, but knows nothing of other workers and of publishers, so the sums would need
the server all the same.

On the path of a task an event is appended to a deque: no lock, so that a signal handler may do it
too, and no I/O. A native thread, started with the first event, adds up and sends. A process that
ends in good order sends the rest; one that is killed loses two seconds. While the server is away
the counts stay here. A batch has a number by which the server knows one that it had counted.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from celery_locks.clock import now
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.events import LockEvent
from celery_locks.metrics.series import counted
from celery_locks.store.commands.metrics import BATCH, MetricField, MetricsCommands
from celery_locks.store.effects import Store
from celery_locks.unpatched import native_lock, original, start_thread

logger = logging.getLogger("celery_locks")

EVERY = 2.0
# More than comes in two seconds; what is older is dropped if the thread gets no time to run.
_MOST_EVENTS = 100_000
Increments = list[tuple[MetricField, int]]


class Recorder:
    """A subscriber of events; see the module's docstring."""

    def __init__(self, locks: Callable[[], Locks]) -> None:
        """``locks`` is asked when there is something to send: an app may not be set up before."""
        self._locks = locks
        self._server: tuple[Store, MetricsCommands] | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """What the parent has counted, the parent sends."""
        self._events: deque[LockEvent] = deque(maxlen=_MOST_EVENTS)
        self._counts: dict[MetricField, int] = {}
        self._unsent: Increments = []
        self._process, self._number = os.urandom(8).hex(), 0
        self._is_started = native_lock()
        self._is_sending = self._is_in_trouble = False
        self._wakeup_pipe = native_lock()
        self._wakeup_pipe.acquire()

    def __call__(self, event: LockEvent) -> None:
        self._events.append(event)
        if not self._is_started.locked() and self._is_started.acquire(False):
            self._start()

    def _start(self) -> None:
        try:
            start_thread(self._run, self._wakeup_pipe)
        except RuntimeError:  # no thread to be had: perhaps with the next event
            self._is_started.release()

    def wait_idle(self, seconds: float = 3.0) -> None:
        """Have everything sent now, and wait for that; at a process's end."""
        until = now() + seconds
        while self._is_started.locked() and self._has_work() and now() < until:
            with suppress(RuntimeError):  # it has been rung already
                self._wakeup_pipe.release()
            original("time", "sleep")(0.005)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self.wait_idle()
        self.after_fork()

    def _has_work(self) -> bool:
        return bool(self._events or self._counts or self._unsent or self._is_sending)

    # From here on in the recorder's thread.

    def _run(self, bell: Any) -> None:
        while bell is self._wakeup_pipe:
            bell.acquire(timeout=EVERY)
            self._is_sending = True
            try:
                self.flush()
                self._is_in_trouble = False
            except Exception as error:  # noqa: BLE001 (nothing may end this thread)
                self._complain(error)
                original("time", "sleep")(0.1)
            self._is_sending = False

    def _complain(self, error: Exception) -> None:
        """Once for each time that it begins, and not of a server that everybody misses."""
        if not self._is_in_trouble and not isinstance(error, LockUnavailable):
            logger.error("the lock metrics cannot be sent now, and are kept", exc_info=error)
        self._is_in_trouble = True

    def flush(self) -> None:
        """Send what was counted until now; raises ``LockUnavailable`` and keeps it then."""
        self._add_up()
        if self._server is None and self._counts:
            locks = self._locks()
            self._server = locks.store_for_thread(), MetricsCommands(locks.commands)
        while self._unsent or self._counts:
            if not self._unsent:
                self._number += 1
                self._unsent = list(islice(self._counts.items(), BATCH))
                self._counts = dict(islice(self._counts.items(), BATCH, None))
            # Sent again after a failure, with its number: nobody knows whether it arrived.
            store, commands = cast(tuple[Store, MetricsCommands], self._server)
            store.perform(commands.count(self._process, self._number, self._unsent))
            self._unsent = []

    def _add_up(self) -> None:
        with suppress(IndexError):
            while True:
                for field, amount in counted(self._events.popleft()):
                    self._counts[field] = self._counts.get(field, 0) + amount
