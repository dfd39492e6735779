"""Count the events of this process and add them to the sums that the lock server keeps.

In a prefork pool the children acquire and release, the main process renews, and the publishers see
the duplicates: each process counts only a part, and a child is never scraped. So every process
sends its new counts every two seconds, and whoever is scraped reads the sums. Shared memory between
a worker and its children would save each child a thread, but does not include other workers and
publishers, so the sums would need the server anyway.

A task only appends an event to a deque: no lock, so that a signal handler may do it too, and no
I/O. A native thread, started with the first event, adds up and sends. A process that exits normally
sends the rest; one that is killed loses up to two seconds. While the server is unavailable the
counts are kept. A batch has a number by which the server recognises one that it has counted.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from celery_locks.admin.connect import Locks
from celery_locks.admin.metric_sums import BATCH, CountSender, Increments, MetricField
from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.events import LockEvent
from celery_locks.logs import Reports
from celery_locks.metrics.series import counted
from celery_locks.unpatched import native_lock, original, start_thread

EVERY = 2.0
# More than two seconds bring; older events are dropped if the thread gets no time to run.
_MOST_EVENTS = 100_000
_FAILED = "could not send the lock metrics; keeping them for the next try"


class Recorder:
    """The subscriber that counts events; see the module's docstring."""

    def __init__(self, locks: Callable[[], Locks]) -> None:
        """Store ``locks``, which is called at the first send: the app may not be set up before."""
        self._locks = locks
        self._sender: CountSender | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """Start with no counts: the parent sends its own."""
        self._events: deque[LockEvent] = deque(maxlen=_MOST_EVENTS)
        self._counts: dict[MetricField, int] = {}
        self._unsent: Increments = []
        self._process, self._number = os.urandom(8).hex(), 0
        self._is_started = native_lock()
        self._is_sending = False
        self._reports = Reports()
        self._wakeup = native_lock()
        self._wakeup.acquire()

    def __call__(self, event: LockEvent) -> None:
        self._events.append(event)
        if not self._is_started.locked() and self._is_started.acquire(False):
            self._start()

    def _start(self) -> None:
        try:
            start_thread(self._run, self._wakeup)
        except RuntimeError:  # no thread can be started now: the next event tries again
            self._is_started.release()

    def wait_idle(self, seconds: float = 3.0) -> None:
        """Wait until everything is sent; called at the end of a process."""
        until = now() + seconds
        while self._is_started.locked() and self._has_work() and now() < until:
            with suppress(RuntimeError):  # the thread has been woken already
                self._wakeup.release()
            original("time", "sleep")(0.005)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self.wait_idle()
        self.after_fork()

    def _has_work(self) -> bool:
        return bool(self._events or self._counts or self._unsent or self._is_sending)

    # The methods below run in the recorder's thread.

    def _run(self, wakeup: Any) -> None:
        while wakeup is self._wakeup:
            wakeup.acquire(timeout=EVERY)
            self._is_sending = True
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001 (nothing may end this thread)
                if not isinstance(error, LockUnavailable):  # others log that
                    self._reports.failure(_FAILED)
                original("time", "sleep")(0.1)
            self._is_sending = False

    def flush(self) -> None:
        """Send the counts; on ``LockUnavailable`` they are kept."""
        self._add_up()
        while self._unsent or self._counts:
            if self._sender is None:
                self._sender = CountSender(self._locks())
            if not self._unsent:
                self._number += 1
                self._unsent = list(islice(self._counts.items(), BATCH))
                self._counts = dict(islice(self._counts.items(), BATCH, None))
            # After a failure it is sent again with the same number, as it may have arrived.
            self._sender.send(self._process, self._number, self._unsent)
            self._unsent = []

    def _add_up(self) -> None:
        with suppress(IndexError):
            while True:
                for field, amount in counted(self._events.popleft()):
                    self._counts[field] = self._counts.get(field, 0) + amount
