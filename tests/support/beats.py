"""Real beats of ``beat_app`` and a worker, and the runs that came of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.beat_app import CONF_VARIABLE, RUNS
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
TTL = 3.0
FAST = 1.0
ENTRIES = ("fast", "slow")


def celery(server: EmbeddedServer, conf: dict[str, Any], *arguments: str) -> list[str]:
    variables = {
        "PYTHONPATH": str(ROOT),
        "CELERY_BROKER_URL": server.url,
        CONF_VARIABLE: json.dumps(conf),
    }
    words = [f"{name}={value}" for name, value in variables.items()]
    app = ("-A", "tests.support.beat_app")
    return ["/usr/bin/env", *words, sys.executable, "-m", "celery", *app, *arguments]


class Fleet:
    """A server and a worker for all tests; each test has a lock of its own for its beats."""

    names = itertools.count()

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._client = server.client()
        self._client.delete(RUNS)
        self.conf: dict[str, Any] = {"locks_beat_name": f"beat:{next(self.names)}"}
        self._beats: list[Child] = []

    def beat(self) -> Child:
        command = celery(self._server, self.conf, "beat", "-l", "INFO", "--pidfile=")
        self._beats.append(Child(command, new_directory()))
        return self._beats[-1]

    def two_beats(self) -> tuple[Child, Child]:
        """The active beat, and one that stands by."""
        active = self.beat()
        self.wait_sent_by(active, 2)
        other = self.beat()
        wait_until(lambda: "beat: Starting..." in other.log(), PATIENCE, what="the other beat")
        return active, other

    def locks_list(self) -> str:
        command = celery(self._server, self.conf, "locks", "list")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def runs(self, entry: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._client.lrange(RUNS, 0, -1)]
        found.sort(key=lambda run: run["sent_at"])
        return [run for run in found if entry in (None, run["entry"])]

    def wait_sent_by(self, beat: Child, count: int, after: float = 0.0) -> list[dict[str, Any]]:
        """Wait for runs of the fast entry that this beat sent."""

        def found() -> list[dict[str, Any]]:
            runs = self.runs("fast")
            return [run for run in runs if run["pid"] == beat.pid and run["sent_at"] > after]

        what = f"{count} runs of beat {beat.pid}"
        try:
            wait_until(lambda: len(found()) >= count, PATIENCE, every=0.05, what=what)
        except AssertionError:
            for each in self._beats:
                print(f"--- beat {each.pid}:\n{each.log(200)}")
            raise
        return found()

    def check_each_run_is_sent_once(self, quiet: bool = True) -> None:
        """The beats count together: no number may be missing, and none may come twice."""
        if quiet:
            self.wait_quiet()
        self.stop()
        last = {entry: self.last_number(entry) for entry in ENTRIES}
        wait_until(lambda: all(self.numbers(e)[-1:] == [n] for e, n in last.items()), PATIENCE)
        for entry, number in last.items():
            numbers = self.numbers(entry)
            assert numbers == list(range(1, number + 1)), f"runs of {entry!r}: {numbers}"
            times = [run["sent_at"] for run in self.runs(entry)]
            assert all(b - a > FAST / 2 for a, b in itertools.pairwise(times))

    def numbers(self, entry: str) -> list[int]:
        return [run["number"] for run in self.runs(entry)]

    def last_number(self, entry: str) -> int:
        """The number of the last claim, from the lock server."""
        record = self._client.hget(f"celery-locks:{{0}}:b:{self.conf['locks_beat_name']}", entry)
        assert record
        return int(record.split()[1])

    def wait_quiet(self) -> None:
        """Wait until a run has come, so that the next one is not due at once."""
        before = len(self.runs())
        wait_until(lambda: len(self.runs()) > before, PATIENCE, what="the next run")

    def kill_between_runs(self, beat: Child) -> None:
        """Kill a beat that has sent what it claimed: if it dies in between, that run is lost.

        Two entries are often due together, so a run that has come does not mean that none is
        being sent. Only a stopped process can be looked at and killed in the same state.
        """

        def is_between_runs() -> bool:
            os.kill(beat.pid, signal.SIGSTOP)
            self._client.ping()  # after what the beat had sent before it was stopped
            if all(self.numbers(e)[-1:] == [self.last_number(e)] for e in ENTRIES):
                return True
            os.kill(beat.pid, signal.SIGCONT)
            return False

        wait_until(is_between_runs, PATIENCE, every=0.05, what="a moment between two runs")
        beat.kill()

    def stop(self) -> None:
        for beat in self._beats:
            beat.stop()

    def kill(self) -> None:
        for beat in self._beats:
            beat.kill()
        self._client.close()


@contextmanager
def server_with_worker() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        options = ("-c", "1", "--without-gossip", "--without-mingle", "-l", "INFO")
        worker = Child(celery(server, {}, "worker", *options), new_directory())
        wait_until(lambda: " ready." in worker.log(), PATIENCE, what="the worker to be ready")
        yield server
        worker.stop()
