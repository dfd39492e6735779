"""A thread of a worker that does something from time to time, or at once when it is asked to."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

_STOP_WITHIN = 5.0


class PeriodicThread(threading.Thread):
    """Calls ``work`` about every ``every`` seconds. ``work`` must not raise."""

    def __init__(self, name: str, work: Callable[[], object], every: float) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._every = every
        self._run_now = threading.Event()
        self._is_stopping = False

    def run(self) -> None:
        while True:
            # Not all workers at the same time.
            self._run_now.wait(self._every * random.uniform(0.5, 1.5))
            self._run_now.clear()
            if self._is_stopping:
                return
            self._work()

    def run_now(self) -> None:
        self._run_now.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._run_now.set()
        self.join(_STOP_WITHIN)
