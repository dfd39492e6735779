"""Renewing 1 to 10,000 leases of one process, in batches as the renewer does."""

from __future__ import annotations

from contextlib import closing

from benchmarks.effort import FULL, Effort
from benchmarks.renewal import acquired, tick_of
from benchmarks.report import Report
from benchmarks.servertime import processor_ms, script_calls
from benchmarks.timing import in_turns, p50
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

LEASES = (1, 10, 100, 1000, 10_000)
ROUNDS = 15


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = ("leases", "p50 ms", "µs a lease", "calls", "server's CPU ms")
    report = Report("growth-renewal", "Renewing more leases at once", columns)
    points = []
    for count in effort.sizes(*LEASES):
        with EmbeddedServer() as empty:
            points.append(_measure(report, empty, count, effort.count(ROUNDS, least=3)))
    report.data["points"] = points
    longest = points[-1][1] * 1e3
    report.at_most(f"renewing {points[-1][0]:,} leases", 1000, longest, " ms")
    return report


def _measure(report: Report, server: EmbeddedServer, count: int, rounds: int) -> list[float]:
    with closing(Locks.from_url(server.url)) as locks:
        leases = acquired(locks, count)
        tick = tick_of(locks.store_for_thread(), locks, leases)
        tick()
        calls, spent = script_calls(server), processor_ms(server.pid)
        # One more than the rounds: in_turns begins with one that is not timed.
        times = in_turns({"tick": tick}, rounds, 1)["tick"]
        calls = (script_calls(server) - calls) // (rounds + 1)
        spent = (processor_ms(server.pid) - spent) / (rounds + 1)
        for lease in leases:
            lease.release()
    report.add(f"{count:,}", p50(times) * 1e3, p50(times) / count * 1e6, calls, spent)
    return [count, p50(times), spent / 1e3]
