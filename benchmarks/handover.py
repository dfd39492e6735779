"""Hand-over: 20 processes want one lock, each holds it 5 ms and queues again.

It measures the time from the start of one holder's release to the next holder's entry, on
CLOCK_MONOTONIC, which all processes share; how evenly the processes get the lock (Jain: 1 is even,
1/20 is one process taking all); and the commands that clients send per section.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

import redis
import redis_lock

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.timing import p50, p99
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

PROCESSES, HOLD, ROUNDS = 20, 0.005, 3
START_UP, WARM_UP, MEASURED = 1.5, 0.5, 3.0
OURS, PYTHON_REDIS_LOCK, REDIS_PY = "celery-locks", "python-redis-lock", "redis-py Lock"
# Commands that clients send; everything else in the server's count was called by a script.
SENT = {
    OURS: ("eval", "evalsha", "subscribe", "ping"),
    PYTHON_REDIS_LOCK: ("eval", "evalsha", "set", "blpop"),
    REDIS_PY: ("eval", "evalsha", "set"),
}

Section = tuple[float, float, int]  # entered, release began, process
Pair = tuple[Callable[[], object], Callable[[], object]]


@dataclass
class Outcome:
    """The measurements of one candidate, over all rounds."""

    gaps: list[float] = field(default_factory=list)
    fairness: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "handover",
        f"Hand-over, {PROCESSES} waiting processes, {HOLD * 1e3:g} ms holds",
        ("", "p50 ms", "p99 ms", "fairness", "commands a section", "sections"),
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    outcomes = {name: Outcome() for name in SENT}
    for _ in range(effort.count(ROUNDS)):
        for name, outcome in outcomes.items():
            _round(context, server, name, outcome, 0.5 if effort.is_quick else MEASURED)
    for name, outcome in outcomes.items():
        _fill(report, name, outcome)
    _judge(report, outcomes)
    return report


def _fill(report: Report, name: str, outcome: Outcome) -> None:
    report.add(
        name,
        p50(outcome.gaps) * 1e3,
        p99(outcome.gaps) * 1e3,
        round(min(outcome.fairness), 3),
        max(outcome.commands),
        len(outcome.gaps),
    )


def _judge(report: Report, outcomes: dict[str, Outcome]) -> None:
    ours = outcomes[OURS]
    peer = p50(outcomes[PYTHON_REDIS_LOCK].gaps)
    report.at_most("p50 against python-redis-lock's", 1, p50(ours.gaps) / peer, " ×")
    report.at_least("fairness, the worst round", 0.99, min(ours.fairness))
    # Half a section at either end of the window belongs to neither side.
    report.at_most("commands a section, the worst round", 3, round(max(ours.commands), 2))


def _round(
    context: ForkServerContext,
    server: EmbeddedServer,
    name: str,
    outcome: Outcome,
    measured: float,
) -> None:
    begin = time.monotonic() + START_UP
    window = begin + WARM_UP, begin + WARM_UP + measured
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    processes = [
        context.Process(target=_contend, args=(name, server.port, begin, window[1], number, sender))
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    sent = commands_between(server, SENT[name], window)
    sections = sorted(section for receiver, _ in pipes for section in receiver.recv())
    for process in processes:
        process.join()
    _add(outcome, [s for s in sections if window[0] <= s[0] < window[1]], sent)


def commands_between(
    server: EmbeddedServer, names: tuple[str, ...], window: tuple[float, float]
) -> int:
    counts = []
    for at in window:
        time.sleep(max(0.0, at - time.monotonic()))
        stats = server.info("commandstats")
        lines = [stats.get(f"cmdstat_{name}", "calls=0,") for name in names]
        counts.append(sum(int(line.split(",")[0].removeprefix("calls=")) for line in lines))
    return counts[1] - counts[0]


def _add(outcome: Outcome, sections: list[Section], sent: int) -> None:
    outcome.gaps += [later[0] - earlier[1] for earlier, later in pairwise(sections)]
    shares = [sum(s[2] == number for s in sections) for number in range(PROCESSES)]
    outcome.fairness.append(sum(shares) ** 2 / (PROCESSES * sum(n * n for n in shares)))
    outcome.commands.append(sent / len(sections))


def _contend(
    name: str, port: int, begin: float, end: float, number: int, sender: Connection
) -> None:
    """Acquire, hold and release in one process, until the end."""
    acquire, release = _PAIRS[name](port)
    sections: list[Section] = []
    time.sleep(max(0.0, begin - time.monotonic()))
    while time.monotonic() < end:
        acquire()
        entered = time.monotonic()
        time.sleep(HOLD)
        left = time.monotonic()
        release()
        sections.append((entered, left, number))
    sender.send(sections)


def _ours(port: int) -> Pair:
    locks = Locks.from_url(f"redis://127.0.0.1:{port}/0")
    held = []

    def acquire() -> None:
        lease = locks.acquire("bench:handover", ttl=30, wait=60)
        assert lease is not None
        held.append(lease)

    return acquire, lambda: held.pop().release()


def _python_redis_lock(port: int) -> Pair:
    lock = redis_lock.Lock(redis.Redis(port=port), "bench:handover", expire=30)
    return lock.acquire, lock.release


def _redis_py(port: int) -> Pair:
    lock = redis.Redis(port=port).lock("bench:redis-py", timeout=30)
    return lock.acquire, lock.release


_PAIRS: dict[str, Callable[[int], Pair]] = {
    OURS: _ours,
    PYTHON_REDIS_LOCK: _python_redis_lock,
    REDIS_PY: _redis_py,
}
