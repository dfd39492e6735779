"""10,000 publishes of one key while the first is queued, against the peers; and of new keys.

No worker runs: the benchmark measures the caller's time. The candidates publish in turns, each from
its own process in its own environment (``peers.py``), into its own database.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from benchmarks.effort import FULL, Effort
from benchmarks.peers import OURS, PEERS, PLAIN, ROOT, Unusable, interpreter, release
from benchmarks.report import Report
from benchmarks.timing import MICROSECOND, p50, p99
from tests.servers.embedded import EmbeddedServer

CANDIDATES = (PLAIN, OURS, *PEERS)
ROUNDS, EACH = 50, 200
NEW_EACH = 40


class Publisher:
    """A candidate's process, called over pipes."""

    def __init__(self, name: str, url: str) -> None:
        environment = {"BENCH_CANDIDATE": name, "BENCH_URL": url, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [interpreter(name), "-m", "benchmarks.publishers"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def publish(self, kind: str, number: int) -> list[float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([kind, number]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Unusable("it ended at its first publish")
        taken: list[float] = json.loads(answer)
        return taken

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    rounds = effort.count(ROUNDS)
    calls = rounds * EACH
    report = Report(
        "publishing",
        f"Publishing: {calls:,} calls of one key, the first one queued; and calls of new keys",
        ("", "one key p50 µs", "p99 µs", f"{calls:,} s", "messages", "new key p50 µs"),
    )
    publishers = _publishers(server, report)
    same: dict[str, list[float]] = {name: [] for name in publishers}
    new: dict[str, list[float]] = {name: [] for name in publishers}
    try:
        for publisher in publishers.values():
            publisher.publish("same", 1)
        for _ in range(rounds):
            for name, publisher in publishers.items():
                same[name] += publisher.publish("same", EACH)
        queued = {name: _queued(server, name) for name in publishers}
        for _ in range(rounds):
            for name, publisher in publishers.items():
                new[name] += publisher.publish("new", NEW_EACH)
    finally:
        for publisher in publishers.values():
            publisher.stop()
    _fill(report, same, new, queued)
    return report


def _publishers(server: EmbeddedServer, report: Report) -> dict[str, Publisher]:
    started = {}
    for name in CANDIDATES:
        try:
            started[name] = Publisher(name, _url(server, name))
        except Unusable as error:
            report.notes.append(f"{name} {error}.")
    return started


def _url(server: EmbeddedServer, name: str) -> str:
    return server.url.removesuffix("0") + str(1 + CANDIDATES.index(name))


def _queued(server: EmbeddedServer, name: str) -> int:
    client: Any = server.client(db=1 + CANDIDATES.index(name))
    length = int(client.llen("celery"))
    client.close()
    return length


def _fill(
    report: Report,
    same: dict[str, list[float]],
    new: dict[str, list[float]],
    queued: dict[str, int],
) -> None:
    for name, taken in same.items():
        label = f"{name} {release(name)}" if name in PEERS else name
        middle, fresh = p50(taken) / MICROSECOND, p50(new[name]) / MICROSECOND
        report.add(label, middle, p99(taken) / MICROSECOND, sum(taken), queued[name], fresh)
    for peer in PEERS:
        if peer in same:
            ratio = sum(same[OURS]) / sum(same[peer])
            report.at_most(f"{len(same[OURS]):,} of one key against {peer}", 1, ratio, " ×")
    report.notes.append(
        "celery-heimdall with `unique_lock_blocking=False`; with its default a duplicate call "
        "waits up to a second."
    )
    report.at_most(f"messages queued by {len(same[OURS]):,} calls", 1, queued[OURS])
