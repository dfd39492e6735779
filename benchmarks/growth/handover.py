"""Hand-over under 1 to 500 waiters: from the start of a release to the next holder's entry.

One lock, held for 5 ms; who released it queues again. The waiters are threads of up to five
processes, which share the subscription of their process, as in a worker with a thread pool.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from itertools import pairwise
from multiprocessing.connection import Connection

from benchmarks.effort import FULL, Effort
from benchmarks.handover import HOLD, OURS, SENT, Section, commands_between
from benchmarks.report import Report
from benchmarks.timing import p50, p99
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

WAITERS = (1, 5, 20, 100, 500)
PROCESSES = 5
START_UP, WARM_UP, MEASURED = 1.5, 0.5, 8.0


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = ("waiters", "p50 ms", "p99 ms", "commands a section", "sections")
    report = Report("growth-handover", "Hand-over with more waiters, 5 ms holds", columns)
    measured = 0.5 if effort.is_quick else MEASURED
    points = []
    for waiters in effort.sizes(*WAITERS):
        gaps, commands = _measure(server, waiters, measured)
        report.add(waiters, p50(gaps) * 1e3, p99(gaps) * 1e3, commands, len(gaps))
        points.append([waiters, p50(gaps), p99(gaps)])
    report.data["points"] = points
    growth = points[-1][1] / points[0][1]
    report.at_most(f"p50 with {points[-1][0]} waiters against 1", 2, growth, " ×")
    return report


def _measure(server: EmbeddedServer, waiters: int, seconds: float) -> tuple[list[float], float]:
    """Return the times of the hand-overs in the window, and the commands of a section."""
    begin = time.monotonic() + START_UP
    window = begin + WARM_UP, begin + WARM_UP + seconds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = []
    for threads in _shares(waiters + 1):
        receiver, sender = context.Pipe(duplex=False)
        given = (server.url, begin, window[1], threads, sender)
        context.Process(target=_contend, args=given, daemon=True).start()
        pipes.append(receiver)
    sent = commands_between(server, SENT[OURS], window)
    sections = sorted(section for receiver in pipes for section in receiver.recv())
    inside = [section for section in sections if window[0] <= section[0] < window[1]]
    return [later[0] - earlier[1] for earlier, later in pairwise(inside)], sent / len(inside)


def _shares(threads: int) -> list[int]:
    """Spread the threads evenly over the processes."""
    processes = min(PROCESSES, threads)
    return [(threads + number) // processes for number in range(processes)]


def _contend(url: str, begin: float, end: float, threads: int, sender: Connection) -> None:
    locks = Locks.from_url(url)
    sections: list[Section] = []
    running = [
        threading.Thread(target=_take_turns, args=(locks, begin, end, sections))
        for _ in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    locks.close()
    sender.send(sections)


def _take_turns(locks: Locks, begin: float, end: float, sections: list[Section]) -> None:
    time.sleep(max(0.0, begin - time.monotonic()))
    while (left := end - time.monotonic()) > 0:
        # Who gets it no more in time leaves; the window is over then.
        lease = locks.acquire("bench:growth", ttl=30, wait=left)
        if lease is None:
            return
        entered = time.monotonic()
        time.sleep(HOLD)
        leaving = time.monotonic()
        lease.release()
        sections.append((entered, leaving, 0))
