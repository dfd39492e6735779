"""One workload: servers, clients, faults, and the verdict when the clients have ended."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.histories.contradiction import Verdict, judge
from tests.histories.recorder import VARIABLE
from tests.histories.requests import read
from tests.jepsen.client import END, ClientOptions
from tests.jepsen.faults import Faults
from tests.jepsen.storage import Storage
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker import ROOT

CLIENTS = 5
WORKLOADS = ("lock and unlock", "set without the fence", "set with the fence")


@dataclass(frozen=True)
class Outcome:
    """What a workload did and lost. ``added`` counts updates that the storage acknowledged."""

    workload: str
    seconds: float
    seed: int
    history: Verdict
    faults: dict[str, int]
    added: int
    lost: int
    rejected: int

    @property
    def is_good(self) -> bool:
        """Return True if the lock is linearizable, and with the fence no update is lost.

        Without a fence updates get lost under every lock: a client may be stopped for longer than
        its lease lives, after its last look at it.
        """
        loses = self.lost > 0 and self.workload != "set without the fence"
        return self.history.is_linearizable and not loses

    def as_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "seconds": self.seconds,
            "seed": self.seed,
            "clients": CLIENTS,
            "faults": self.faults,
            "added": self.added,
            "lost": self.lost,
            "rejected": self.rejected,
            "history": self.history.as_dict(),
        }


def run(
    workload: str,
    *,
    seconds: float,
    seed: int,
    least_requests: int = 0,
    least_lost: int = 0,
    mistake: str = "",
) -> Outcome:
    """Run the clients under faults for ``seconds``, counted from when all of them are at work.

    Go on, for another minute at most, until there are so many requests and lost updates.
    """
    with (
        EmbeddedServer() as server,
        EmbeddedServer() as storage,
        Proxy(server.host, server.port) as proxy,
        tempfile.TemporaryDirectory(prefix="celery-locks-jepsen-") as directory,
    ):
        clients = _Clients(workload, proxy, storage, Path(directory), seconds, seed, mistake)
        dice = random.Random(f"faults {workload} {seed}")
        faults = Faults(dice, clients.running, clients.start, server, proxy)
        try:
            clients.start_all()
            began = time.monotonic()

            def is_over() -> bool:
                passed = time.monotonic() - began
                if passed < seconds or passed > seconds + 60:
                    return passed > seconds
                return clients.count_lines() >= 2 * least_requests and (
                    len(clients.lost()) >= least_lost
                )

            faults.run(is_over)
            clients.wait_end(faults)
        finally:
            clients.kill()
        return clients.outcome(faults)


class _Clients:
    def __init__(
        self,
        workload: str,
        proxy: Proxy,
        storage: EmbeddedServer,
        directory: Path,
        seconds: float,
        seed: int,
        mistake: str,
    ) -> None:
        self._workload, self._seconds, self._seed = workload, seconds, seed
        self._lock_url, self._storage_url = proxy.url, storage.url
        self._directory = directory
        self._history = directory / "history"
        self._mistake = mistake
        self._started = 0
        self.running: list[Child] = []

    def start_all(self) -> None:
        """Start the clients, and return when each of them has sent a request."""
        self.running += [self.start() for _ in range(CLIENTS)]
        wait_until(
            lambda: len(list(self._history.glob("*.jsonl"))) >= CLIENTS,
            60.0,
            what="a request of each client",
        )

    def start(self) -> Child:
        self._started += 1
        options = ClientOptions(
            self._workload,
            self._lock_url,
            self._storage_url,
            str(self._directory),
            f"client {self._seed} {self._started}",
            self._mistake,
        )
        environment = [f"PYTHONPATH={ROOT}", f"{VARIABLE}={self._history}"]
        command = [sys.executable, "-m", "tests.jepsen.client", json.dumps(asdict(options))]
        return Child(["/usr/bin/env", *environment, *command], new_directory())

    def wait_end(self, faults: Faults) -> None:
        (self._directory / END).touch()

        def have_ended() -> bool:
            faults.continue_stopped(after=0.0)
            return not any(client.is_running for client in self.running)

        wait_until(have_ended, 60.0, what="the clients to end")
        for client in self.running:
            assert client.exit_code == 0, client.log()

    def kill(self) -> None:
        for client in self.running:
            client.kill()

    def count_lines(self) -> int:
        """Return the number of lines in the history: a request and its reply are two."""
        return sum(path.read_bytes().count(b"\n") for path in self._history.glob("*.jsonl"))

    def notes(self, what: str) -> list[str]:
        """Return the elements of the notes of this kind in the journal."""
        journal = self._directory / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note["element"] for note in notes if note["what"] == what]

    def lost(self) -> set[str]:
        """Return the updates that the storage acknowledged and does not have any more."""
        added = {*self.notes("added")}
        storage = Storage(self._storage_url)
        try:
            return added - {*storage.read(0)}
        finally:
            storage.close()

    def outcome(self, faults: Faults) -> Outcome:
        return Outcome(
            self._workload,
            self._seconds,
            self._seed,
            judge(read([self._history])),
            {"client stopped itself": len(self.notes("stopped itself")), **faults.counts},
            len(self.notes("added")),
            len(self.lost()),
            len(self.notes("rejected")),
        )
