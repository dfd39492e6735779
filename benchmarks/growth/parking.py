"""Ten tenants share a lock by ``fair_by``, one of them has 1 to 10,000 parked messages.

The others have one each, and come after it. They take turns, so the number of runs before the last
of them does not depend on what the first tenant has parked; nor does the time of a wake-up.
"""

from __future__ import annotations

import time
from contextlib import closing

from benchmarks.effort import FULL, Effort
from benchmarks.parking import NAME, app_of, start, wake_all
from benchmarks.report import Report
from benchmarks.servertime import processor_ms
from celery_locks import Locks
from celery_locks.integration.message_text import record_message
from celery_locks.store.commands.parking import ParkCommands
from tests.servers.embedded import EmbeddedServer

PARKED = (1, 10, 100, 1000, 10_000)
OTHERS = 9


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = (
        "parked by one tenant",
        "runs before the last other tenant",
        "ms until it starts",
        "server's CPU µs a wake-up",
    )
    report = Report("growth-parking", "Ten tenants, one with more parked messages", columns)
    points = []
    for parked in effort.sizes(*PARKED):
        with EmbeddedServer() as empty:
            points.append(_measure(report, empty, parked))
    report.data["points"] = points
    most = max(point[1] for point in points)
    report.at_most("runs before the last other tenant, against one parked", points[0][1], most)
    return report


def _measure(report: Report, server: EmbeddedServer, parked: int) -> list[float]:
    with closing(Locks.from_url(server.url)) as locks:
        text, _ = record_message(app := app_of(server), app.tasks["in_turn"].s("m", 0).apply_async)
        start(locks, "first")
        for number in range(parked):
            start(locks, f"large-{number}", text, group="large")
        for number in range(OTHERS):
            start(locks, f"small-{number}", text, group=f"small-{number}")
        spent, began = processor_ms(server.pid), time.perf_counter()
        runs = _runs_until_all_others(locks)
        taken = time.perf_counter() - began
        each = (processor_ms(server.pid) - spent) / runs / 1e3
    report.add(f"{parked:,}", runs - 1, taken * 1e3, round(each * 1e6))
    return [parked, runs - 1, taken, each]


def _runs_until_all_others(locks: Locks) -> int:
    """Return how many tasks were woken until all other tenants had run."""
    missing, root = OTHERS, locks.commands.root(NAME)
    for runs, job in enumerate(wake_all(locks, ParkCommands(locks.commands), root, "first"), 1):
        missing -= job.startswith("small-")
        if not missing:
            return runs
    raise AssertionError(f"{missing} of {OTHERS} tenants were not woken")
