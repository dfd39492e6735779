"""A list of 100 to 1,000,000 held locks, and the server's memory for each of them."""

from __future__ import annotations

import time
from contextlib import closing

from benchmarks.effort import FULL, Effort
from benchmarks.filling import fill
from benchmarks.memory import first_page, list_all
from benchmarks.report import Report
from benchmarks.servertime import Watched, used_memory, watch
from benchmarks.timing import MICROSECOND, in_turns, p50
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

LOCKS = (100, 1000, 10_000, 100_000, 1_000_000)
ROUNDS = 20
# A size that would be reached later than this is left out, and the report says so.
FILL_SECONDS = 240.0


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = (
        "locks",
        "bytes a lock",
        "first page, p50 µs",
        "all pages, s",
        "a page, CPU p50 ms",
        "longest page, CPU ms",
    )
    report = Report("growth-listing", "Listing more locks, and their memory", columns)
    # Without the scripts, which are no cost of a lock.
    fill(server, 1)
    before, filled, began = used_memory(server), 1, time.monotonic()
    points: list[list[float]] = []
    for count in effort.sizes(*LOCKS):
        if _would_end(filled, count, began) > FILL_SECONDS:
            report.notes.append(f"{count:,} locks were not measured: filling takes too long here.")
            break
        fill(server, count, filled)
        filled = count
        each = (used_memory(server) - before) / (count - 1)
        points.append(_measure(report, server, count, each, effort))
    report.data["points"] = points
    (few, bytes_few, first, *_), (many, bytes_many, last, *_) = points[0], points[-1]
    report.at_most(f"first page of {many:,} locks against {few:,}", 2, last / first, " ×")
    report.at_most("the longest page, processor time", 5, max(it[5] for it in points) * 1e3, " ms")
    report.at_most("bytes of a lock", 800, max(bytes_few, bytes_many))
    return report


def _would_end(filled: int, count: int, began: float) -> float:
    """Return the seconds after the start at which ``count`` locks would be there."""
    taken = time.monotonic() - began
    return taken * count / filled if filled > 10_000 else 0.0


def _measure(
    report: Report, server: EmbeddedServer, count: int, each: float, effort: Effort
) -> list[float]:
    with closing(Locks.from_url(server.url)) as locks:
        rounds = effort.count(ROUNDS, least=2)
        first = p50(in_turns({"page": lambda: first_page(locks)}, rounds, 5)["page"])
        watched = Watched(server, locks.perform)
        began = time.perf_counter()
        times = watch(server, watched, lambda: list_all(watched, count))
        whole = time.perf_counter() - began
    page = p50(times.ran or times.wall)
    report.add(f"{count:,}", round(each), first / MICROSECOND, whole, page, times.longest)
    return [count, each, first, whole, page / 1e3, times.longest / 1e3]
