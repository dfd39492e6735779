"""The cost of a lock for a no-op task: plain Celery, ours, the recipe and the peers.

All run on one server, each in its own environment with its own worker; the others idle while one
is timed. ``rounds.py`` says what a round times. A ratio or a difference is taken within its round,
so that other load affects both sides of it, and there are several generations of workers
(``intervals.py``). Generations are added until the intervals of ours to plain are so narrow that
two runs agree within 2 %, or the time is over; the report says which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from random import Random
from typing import Any, NamedTuple

from benchmarks.effort import FULL, Effort
from benchmarks.intervals import AGREEMENT, WANTED, Interval
from benchmarks.peers import (
    CANDIDATES,
    COOKBOOK,
    OURS,
    PEERS,
    PLAIN,
    Contender,
    contenders,
    load,
    release,
    start,
    threads_of,
)
from benchmarks.report import Report
from benchmarks.rounds import BOTH, PHASES, SLOW, WARM_UP, Outcome, measure
from benchmarks.servertime import script_calls
from benchmarks.timing import MICROSECOND
from tests.servers.embedded import EmbeddedServer

# Few rounds and many generations: these differ more than those.
ROUNDS, LEAST_GENERATIONS = 5, 8
# A candidate that takes a second for a task has its figure after this many generations.
SLOW_GENERATIONS = 2
PREFORK = ("-P", "prefork", "-c", "2")


class Pool(NamedTuple):
    """A pool, what is timed in it, and the seconds after which no generation is added."""

    name: str
    words: tuple[str, ...]
    phases: tuple[str, ...]
    seconds: float


POOLS = (
    Pool("prefork -c2", PREFORK, PHASES, 520.0),
    Pool("threads -c2", ("-P", "threads", "-c", "2"), (BOTH,), 120.0),
)


class Measurement:
    """The figures of one pool, with the generations that they took."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.outcome = Outcome()
        self.absent: dict[str, str] = {}
        self.threads: dict[str, int] = {}
        self.generations = 0

    def take(self, server: EmbeddedServer, effort: Effort) -> None:
        """Measure generations until the intervals are narrow, or the time is over."""
        lots, until = Random(1), time.monotonic() + self.pool.seconds * effort.share
        while not self.generations or not self._is_enough(effort, until):
            with contenders(self._names(), server, self.pool.words) as (ready, missing):
                self.absent |= missing
                phases, rounds = self.pool.phases, _rounds(effort)
                measure(ready, self.outcome, self.generations, lots, rounds, phases)
                self.threads |= {it.name: threads_of(it.worker.pid) for it in ready}
            self.generations += 1

    def _is_enough(self, effort: Effort, until: float) -> bool:
        is_narrow = self.generations >= LEAST_GENERATIONS and all(
            self.against(OURS, PLAIN, phase).half_width <= WANTED for phase in self.pool.phases
        )
        return effort.is_quick or is_narrow or time.monotonic() > until

    def _names(self) -> list[str]:
        return [
            name
            for name in CANDIDATES
            if self.generations < SLOW_GENERATIONS or not self._is_slow(name)
        ]

    def _is_slow(self, name: str) -> bool:
        return name not in self.absent and self.outcome.of(name).middle > 1 / SLOW

    def cpu_half_width(self, phase: str) -> float:
        ours, plain = (self.outcome.of(name, phase) for name in (OURS, PLAIN))
        return ours.cpu_ratio(plain).half_width

    def against(self, name: str, other: str, phase: str = BOTH) -> Interval:
        return self.outcome.of(name, phase).ratio(self.outcome.of(other, phase))


def _rounds(effort: Effort) -> int:
    """Return the rounds of a generation; more effort is for more generations."""
    return min(ROUNDS, effort.count(ROUNDS, least=2))


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    times = ("µs", "µs above plain", "× plain")
    columns = ("", *times, *(f"CPU {column}" for column in times))
    report = Report("tasks", "A no-op task, published and run", columns)
    before, costs = load(), []
    for pool in POOLS:
        measurement = Measurement(pool)
        measurement.take(server, effort)
        costs += _fill(report, measurement)
        _judge(report, measurement)
        report.notes.append(_precision(measurement, effort))
    report.data["costs"] = costs
    threads = measurement.threads
    with on_separate_locks(server) as worker:
        report.at_most("commands to the lock server a locked task", 2, commands_a_task(*worker))
    report.at_most("threads more in a worker's main process", 1, threads[OURS] - threads[PLAIN])
    report.notes.append(_surroundings(before, measurement.absent))
    return report


def _fill(report: Report, measurement: Measurement) -> list[dict[str, Any]]:
    """Add a row for each candidate and phase; return the same as numbers, for the charts."""
    costs = []
    for phase in measurement.pool.phases:
        report.begin_section(f"{phase}, {measurement.pool.name}")
        for name in CANDIDATES:
            if name in measurement.absent:
                report.add(name, *[""] * (len(report.columns) - 1))
                continue
            cost = _cost(measurement, name, phase)
            costs.append({"pool": measurement.pool.name, "phase": phase, "name": name, **cost})
            report.add(name, *_cells(cost, is_plain=name == PLAIN))
    return costs


def _cost(measurement: Measurement, name: str, phase: str) -> dict[str, Any]:
    figures, plain = (measurement.outcome.of(it, phase) for it in (name, PLAIN))
    return {
        "wall": figures.middle,
        "above": figures.above(plain),
        "ratio": figures.ratio(plain),
        "cpu": figures.cpu_middle,
        "cpu_above": figures.cpu_above(plain),
        "cpu_ratio": figures.cpu_ratio(plain),
    }


def _cells(cost: dict[str, Any], is_plain: bool) -> list[str]:
    cells = []
    for kind, above, ratio in (("wall", "above", "ratio"), ("cpu", "cpu_above", "cpu_ratio")):
        cells.append(f"{cost[kind] / MICROSECOND:,.0f}")
        cells.append("" if is_plain else cost[above].text(0, 1 / MICROSECOND))
        cells.append("" if is_plain else cost[ratio].text(2))
    return cells


def _judge(report: Report, measurement: Measurement) -> None:
    """Judge tasks a second, as others do: the inverse of the time of a task."""
    pool, outcome = measurement.pool.name, measurement.outcome
    if pool.startswith("prefork"):
        plain, ours = outcome.of(PLAIN), outcome.of(OURS)
        report.at_least(f"tasks a second against plain, {pool}", 0.9, plain.ratio(ours).middle)
        report.at_least(f"the same by processor time, {pool}", 0.9, plain.cpu_ratio(ours).middle)
    for name in (COOKBOOK, *PEERS):
        if name not in measurement.absent:
            ratio = measurement.against(name, OURS).middle
            report.at_least(f"tasks a second against {name}, {pool}", 1, ratio)


def _precision(measurement: Measurement, effort: Effort) -> str:
    """Say how wide the intervals are, and whether two runs agree."""
    widths = {
        phase: measurement.against(OURS, PLAIN, phase).half_width
        for phase in measurement.pool.phases
    }
    by_cpu = {phase: measurement.cpu_half_width(phase) for phase in measurement.pool.phases}
    shown = ", ".join(
        f"{phase} ±{width:.1%} (by processor time ±{by_cpu[phase]:.1%})"
        for phase, width in widths.items()
    )
    is_narrow = max(widths.values()) <= WANTED and not effort.is_quick
    verdict = "so two runs agree" if is_narrow else "NOT reached: two runs may not agree"
    return (
        f"{measurement.pool.name}: {measurement.generations} generations of workers with "
        f"{_rounds(effort)} rounds each. Half the width of the 95 % interval of ours to plain: "
        f"{shown}. At most ±{WANTED:.1%} by the clock was wanted, {verdict} within {AGREEMENT:.0%}."
    )


@contextmanager
def on_separate_locks(server: EmbeddedServer) -> Iterator[tuple[Contender, EmbeddedServer]]:
    """Start a worker of ours with a lock server of its own, on which nothing else is counted."""
    with EmbeddedServer() as locks:
        contender = start(OURS, server, PREFORK, locks.url)
        try:
            contender.ask("done", WARM_UP)
            yield contender, locks
        finally:
            contender.stop()


def commands_a_task(contender: Contender, locks: EmbeddedServer) -> float:
    """Count the calls to the lock server, without the handshakes of connections."""
    count, before = 300, script_calls(locks)
    contender.ask("done", count)
    # Rounded: the worker polls for parked tasks meanwhile, which is no cost of a task.
    return round((script_calls(locks) - before) / count, 1)


def _surroundings(before: str, absent: dict[str, str]) -> str:
    peers = ", ".join(f"{name} {release(name)}" for name in PEERS if name not in absent)
    missing = "".join(f" {name} {why}." for name, why in absent.items())
    return (
        "Publish: the worker is stopped meanwhile. Run: it runs what waits, until the last result "
        "is stored. Both: it runs while the caller publishes. The worker has one half of the "
        "cores, caller and server the other. CPU is the processor time of all three together. "
        "Figures are medians with their 95 % intervals, ratios and "
        f"differences are taken within each round. Celery {version('celery')}, results stored; "
        f"{peers}, each with its documented defaults; a key for each call.{missing} "
        "celery-heimdall waits a second in each task for the lock that its own message holds; the "
        "cookbook recipe is `SET NX` with an expiry, and a delete. "
        f"Load at the start: {before}; at the end: {load()}."
    )
