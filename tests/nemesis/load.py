"""A steady load: each lock of a row has always a holder and a caller that waits behind it."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

from celery.exceptions import OperationalError

from celery_locks.clock import now
from tests.nemesis.journal import Journal, Run
from tests.nemesis.tasks import LIMITS, TTL, make_app

# How long the jobs of each lock take. The long ones need a renewal, whenever the fault comes.
SECONDS = {"long": (1.4 * TTL, 1.6 * TTL), "brief": (0.2, 0.5), "pair": (0.2, 0.8)}
# A job that is out for longer counts as lost for the load: others are published in its place.
GIVEN_UP = 4 * TTL
_PAUSE = 0.05
_IDLE = 0.5


class Load:
    """Publishes in a thread of its own until ``stop``."""

    def __init__(self, conf: dict[str, Any], row: str, journal: Journal, seed: int) -> None:
        # A stopped broker must not stop the publisher for ever.
        self._app = make_app({**conf, "transport": {"socket_timeout": 1, "max_retries": 1}})
        self._app.finalize()
        self._row = row
        self._journal = journal
        self._dice = random.Random(f"{seed} {row}")
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="nemesis-load")
        self._has_replaced = False
        self._out: dict[str, tuple[str, float]] = {}
        # Of a job whose publish failed nobody knows whether the broker has it.
        self.published: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._app.close()

    def holder(self, lock: str) -> Run | None:
        """Return the run that is inside now."""
        runs = self._journal.runs()
        inside = [run for run in runs if run.lock == self.name(lock) and run.outcome == "gone"]
        return inside[-1] if inside else None

    def name(self, lock: str) -> str:
        return f"{self._row}:{lock}"

    def _publish(self) -> None:
        while not self._stopped.wait(_PAUSE):
            runs = self._journal.runs()
            for run in runs:
                if run.outcome == "ended":
                    self._out.pop(run.job, None)
            out = [lock for lock, since in self._out.values() if now() - since < GIVEN_UP]
            for lock, limit in LIMITS.items():
                for _ in range(limit + 1 - out.count(lock)):
                    self._send(lock, SECONDS[lock])
            self._replace_waiter("long", runs)

    def _replace_waiter(self, lock: str, runs: list[Run]) -> None:
        """Publish one more job, once, if the lock stands idle: its waiter may be dead too."""
        signs = [run.last_sign for run in runs if run.lock == self.name(lock)]
        if signs and now() - max(signs) > _IDLE and not self._has_replaced:
            self._has_replaced = True
            self._send(lock, SECONDS["brief"])

    def _send(self, lock: str, seconds: tuple[float, float]) -> None:
        job = f"{self._row}-{next(self._numbers)}"
        arguments = (self._row, job, self.name(lock), self._dice.uniform(*seconds))
        try:
            with self._app.connection_for_write() as connection:
                task = self._app.tasks["work"]
                task.apply_async(arguments, connection=connection, retry=False)
        except (OperationalError, OSError):
            return
        self.published.append(job)
        self._out[job] = (lock, now())
