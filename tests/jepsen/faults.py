"""The faults of a workload, drawn from a seeded generator, and clients that are continued again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.jepsen.client import TTL
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child
from tests.support.proxy import Proxy

# Longer than a lease lives without renewal, and long enough for others to be granted the lock.
STOPPED_FOR = 2.5 * TTL
_STEP = 0.02


class Faults:
    """Causes one fault after another; ``counts`` says how many of each."""

    def __init__(
        self,
        dice: random.Random,
        clients: list[Child],
        start_client: Callable[[], Child],
        server: EmbeddedServer,
        proxy: Proxy,
    ) -> None:
        self._dice = dice
        self._clients = clients
        self._start_client = start_client
        self._server = server
        self._proxy = proxy
        self._stopped_since: dict[int, float] = {}
        self._choices = {
            self.stop_client: 3,
            self.kill_client: 2,
            self.pause_server: 1,
            self.cut_connections: 3,
            self.lose_reply: 4,
        }
        self.counts: Counter[str] = Counter()

    def run(self, is_over: Callable[[], bool]) -> None:
        strikes_at = time.monotonic() + self._dice.uniform(0.2, 1.0)
        while not is_over():
            self.continue_stopped()
            if time.monotonic() >= strikes_at:
                (fault,) = self._dice.choices(list(self._choices), list(self._choices.values()))
                fault()
                strikes_at = time.monotonic() + self._dice.uniform(0.2, 1.0)
            time.sleep(_STEP)

    def continue_stopped(self, after: float = STOPPED_FOR) -> None:
        """Continue the clients that are stopped for that long, whoever stopped them."""
        moment = time.monotonic()
        stopped = [client for client in self._clients if is_stopped(client.pid)]
        self._stopped_since = {
            client.pid: self._stopped_since.get(client.pid, moment) for client in stopped
        }
        for client in stopped:
            if moment - self._stopped_since[client.pid] >= after:
                client.signal(signal.SIGCONT)

    def stop_client(self) -> None:
        self._dice.choice(self._clients).signal(signal.SIGSTOP)
        self.counts["client stopped"] += 1

    def kill_client(self) -> None:
        """Kill -9; another client takes its place."""
        index = self._dice.randrange(len(self._clients))
        self._clients[index].kill()
        self._clients[index] = self._start_client()
        self.counts["client killed"] += 1

    def pause_server(self) -> None:
        self._server.pause()
        try:
            time.sleep(self._dice.uniform(0.2, 1.2))
        finally:
            self._server.resume()
        self.counts["lock server paused"] += 1

    def cut_connections(self) -> None:
        self._proxy.cut()
        self.counts["connections cut"] += 1

    def lose_reply(self) -> None:
        self._proxy.drop_next_reply(b"EVALSHA")
        self.counts["reply lost"] += 1


def is_stopped(pid: int) -> bool:
    """Return True if the process is stopped by a signal."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
