"""A list of 100 to 1,000,000 held locks, and the server's memory for each of them."""

from __future__ import annotations

import time
from contextlib import closing

from benchmarks.effort import FULL, Effort
from benchmarks.filling import fill
from benchmarks.memory import first_page, list_pages
from benchmarks.report import Report
from benchmarks.servertime import Watched, used_memory, watch
from benchmarks.timing import MICROSECOND, in_turns, p50
from celery_locks import Locks
from celery_locks.store.commands.locks import PAGE
from tests.servers.embedded import EmbeddedServer

LOCKS = (100, 1000, 10_000, 100_000, 1_000_000)
ROUNDS = 20
# A list of all locks has as many pages as it needs; more than these would only repeat the figure.
PAGES = 2500
# A size that takes longer to fill is left out, and the report says so.
FILL_SECONDS = 180.0


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = (
        "locks",
        "bytes a lock",
        "first page, p50 µs",
        "a page, mean ms",
        "a call, CPU p50 ms",
        "longest call, CPU ms",
    )
    report = Report("growth-listing", "Listing more locks, and their memory", columns)
    report.data["points"] = points = _points(report, server, effort)
    (few, _, first, *_), (many, _, last, *_) = points[0], points[-1]
    longest = max(point[5] for point in points) * 1e3
    report.at_most(f"first page of {many:,} locks against {few:,}", 2, last / first, " ×")
    report.at_most("the longest call, processor time", 5, longest, " ms")
    report.at_most("bytes of a lock, of all sizes", 800, round(max(it[1] for it in points)))
    report.notes.append(
        f"A page has about {PAGE} locks and takes a few calls. At most {PAGES:,} pages were read."
    )
    return report


def _points(report: Report, server: EmbeddedServer, effort: Effort) -> list[list[float]]:
    # The scripts are there now: they are no cost of a lock.
    fill(server, 1)
    before, filled, each_fill = used_memory(server), 1, 0.0
    points = []
    for count in effort.sizes(*LOCKS):
        if each_fill * (count - filled) > FILL_SECONDS:
            report.notes.append(f"{count:,} locks were not measured: filling takes too long here.")
            break
        began = time.monotonic()
        fill(server, count, filled)
        each_fill = (time.monotonic() - began) / (count - filled)
        filled = count
        each = (used_memory(server) - before) / (count - 1)
        points.append(_measure(report, server, count, each, effort))
    return points


def _measure(
    report: Report, server: EmbeddedServer, count: int, each: float, effort: Effort
) -> list[float]:
    with closing(Locks.from_url(server.url)) as locks:
        rounds = effort.count(ROUNDS, least=2)
        first = p50(in_turns({"page": lambda: first_page(locks)}, rounds, 5)["page"])
        watched, seconds = Watched(server, locks.perform), list[float]()
        times = watch(server, watched, lambda: seconds.append(_seconds_a_page(watched)))
    [each_page], call = seconds, p50(times.ran or times.wall)
    report.add(f"{count:,}", round(each), first / MICROSECOND, each_page * 1e3, call, times.longest)
    return [count, each, first, each_page, call / 1e3, times.longest / 1e3]


def _seconds_a_page(watched: Watched) -> float:
    began = time.perf_counter()
    _, pages = list_pages(watched, PAGES)
    return (time.perf_counter() - began) / pages
