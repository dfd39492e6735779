"""A call for a start at a rate, while 100 to 100,000 callers have the promise of a start."""

from __future__ import annotations

from contextlib import closing
from itertools import count

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.servertime import processor_ms
from benchmarks.timing import MICROSECOND, in_turns, p50
from celery_locks import Holder, Locks
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import AcquireExtras, RateCheck
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

PROMISED = (100, 1000, 10_000, 100_000)
ROUNDS, EACH = 20, 10
# Every caller gets a promise, however far away: nobody starts during the measurement.
CHECK = RateCheck("bench", Rate.parse("1/m").text, patience=1e6)


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = ("callers with a promise", "p50 µs", "server's CPU µs")
    report = Report("growth-rates", "A rate with more delayed callers", columns)
    points = []
    with closing(Locks.from_url(server.url)) as locks:
        numbers = count()
        for promised in effort.sizes(*PROMISED):
            while (number := next(numbers)) < promised:
                _call(locks, number)
            points.append(_measure(report, server, locks, numbers, promised, effort))
    report.data["points"] = points
    report.at_most("CPU with most against fewest callers", 2, points[-1][2] / points[0][2], " ×")
    return report


def _measure(
    report: Report,
    server: EmbeddedServer,
    locks: Locks,
    numbers: count[int],
    promised: int,
    effort: Effort,
) -> list[float]:
    rounds, spent = effort.count(ROUNDS), processor_ms(server.pid)
    times = in_turns({"call": lambda: _call(locks, next(numbers))}, rounds, EACH)["call"]
    spent = (processor_ms(server.pid) - spent) / (len(times) + 1) / 1e3
    report.add(f"{promised:,}", p50(times) / MICROSECOND, spent / MICROSECOND)
    return [promised, p50(times), spent]


def _call(locks: Locks, number: int) -> None:
    """Ask for a start with a lock of its own, as a task does that is delayed."""
    holder, extras = Holder(task_id=f"{number:08x}", task="bench"), AcquireExtras(rates=(CHECK,))
    spec = LockSpec(f"bench:{number}", 3600.0)
    locks.perform(locks.commands.acquire(spec, f"t{number}", holder, extras))
