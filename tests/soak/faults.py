"""The faults of a soak run, drawn from a seeded generator: what happens, to whom, and when.

The rates are those of the field trial: in 200 seconds about 47 kills of pool children, 9 kills of
whole workers, 17 closings of all broker connections, 13 pauses of the lock server.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from tests.servers.embedded import EmbeddedServer
from tests.support.worker import Worker

# Seconds: a busy machine must not end the run.
REPLY_WITHIN = 30.0
CLOSE_WORKERS_CONNECTIONS = ("CLIENT", "KILL", "USER", "default", "TYPE", "normal")


class Faults:
    """Causes one fault after another until ``until``; ``counts`` says how many of each."""

    def __init__(
        self,
        dice: random.Random,
        workers: list[Worker],
        start_worker: Callable[[], Worker],
        broker: EmbeddedServer,
        lock_server: EmbeddedServer,
    ) -> None:
        self._dice = dice
        self._workers = workers
        self._start_worker = start_worker
        self._broker = broker
        self._lock_server = lock_server
        self._choices = {
            self.kill_child: 47,
            self.kill_worker: 9,
            self.close_broker_connections: 17,
            self.pause_lock_server: 13,
        }
        self.counts: Counter[str] = Counter()

    def run(self, until: float) -> None:
        """Pause and strike, 200 s / 86 faults = 2.3 s on average between two faults."""
        while time.monotonic() < until:
            time.sleep(self._dice.uniform(0.6, 4.0))
            self.restart_ended_workers()
            (fault,) = self._dice.choices(list(self._choices), list(self._choices.values()))
            fault()

    def restart_ended_workers(self) -> None:
        """Start another worker for each that has ended by itself, as a service manager does.

        Celery ends a worker if one of its pool processes is killed before the worker is ready. On a
        busy machine that takes many seconds.
        """
        for index, worker in enumerate(self._workers):
            if not worker.is_running:
                self._replace_worker(index)
                self.counts["worker ended by itself"] += 1

    def kill_child(self) -> None:
        worker = self._dice.choice(self._workers)
        children = worker.children if worker.is_running else []
        if children:
            os.kill(self._dice.choice(children), signal.SIGKILL)
            self.counts["pool child killed"] += 1

    def kill_worker(self) -> None:
        """The whole process group dies, and another worker takes its place."""
        self._replace_worker(self._dice.randrange(len(self._workers)))
        self.counts["worker killed"] += 1

    def _replace_worker(self, index: int) -> None:
        self._workers[index].kill()
        self._workers[index] = self._start_worker()

    def close_broker_connections(self) -> None:
        self._broker.ask(*CLOSE_WORKERS_CONNECTIONS, patience=REPLY_WITHIN)
        self.counts["broker connections closed"] += 1

    def pause_lock_server(self) -> None:
        self._lock_server.pause()
        try:
            time.sleep(self._dice.uniform(0.3, 2.0))
        finally:
            self._lock_server.resume()
        self.counts["lock server paused"] += 1
