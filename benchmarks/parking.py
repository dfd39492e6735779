"""Parked tasks: from a release to the next start, 10,000 that wait for one lock, and round trips.

The next start is compared with that of a task which publishes another one at its end: both are one
publish, one delivery and one acquire; waking adds a poll and a confirmation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.servertime import script_calls, used_memory
from benchmarks.timing import p50, p99
from celery_locks import Holder, Locks
from celery_locks.integration.message_text import record_message
from celery_locks.store.commands.locks import AcquireExtras, ParkRequest
from celery_locks.store.commands.parking import ParkCommands
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until
from tests.support.worker import Worker

ROUNDS, EACH = 5, 60
MANY = 10_000
NAME, TTL = "in_turn", 3600.0


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report("parking", "Parked tasks", ("", "p50 ms", "p99 ms", "measured"))
    _next_start(report, server, effort.count(ROUNDS))
    with EmbeddedServer() as empty:
        _many(report, empty, effort.count(MANY))
    with EmbeddedServer() as empty:
        _round_trips(report, empty)
    return report


def _next_start(report: Report, server: EmbeddedServer, rounds: int) -> None:
    env = {"BENCH_URL": server.url}
    parked: list[float] = []
    published: list[float] = []
    with Worker("benchmarks.parked_tasks", concurrency=4, env=env), server.client() as client:
        app, locks = app_of(server), Locks.from_url(server.url)
        for number in range(-1, rounds):
            _park(locks, app, client, f"parked{number}")
            one = _gaps(_entries(client, f"parked{number}", EACH))
            app.tasks["relay"].delay(f"published{number}", EACH - 1)
            two = _gaps(_entries(client, f"published{number}", EACH))
            if number >= 0:  # the first round is slower: connections and caches
                parked += one
                published += two
        locks.close()
        app.close()
    ratio = p50(parked) / p50(published)
    report.add("end of a run to the start of the next parked one", *_ms(parked), "")
    report.add("end of a run that publishes to the start of that task", *_ms(published), "")
    report.at_most("the next parked task against a published one, p50", 1.5, ratio, " ×")


def _park(locks: Locks, app: Any, client: Any, mark: str) -> None:
    """Let all tasks be parked before the first one starts, so that each one after it is woken."""
    parked = locks.commands.root(NAME) + "parked"
    with locks.hold(NAME, wait=60):
        for _ in range(EACH):
            app.tasks["in_turn"].delay(mark, 0)
        wait_until(lambda: client.hlen(parked) == EACH, 60, what=f"{EACH} parked tasks")


def app_of(server: EmbeddedServer) -> Any:
    os.environ["BENCH_URL"] = server.url
    from benchmarks import parked_tasks

    parked_tasks.app.conf.update(
        broker_url=server.url, result_backend=server.url, locks_url=server.url
    )
    parked_tasks.app.finalize()
    return parked_tasks.app


def _entries(client: Any, mark: str, count: int) -> list[tuple[float, float]]:
    """Return start and end of each run, in the order of the starts."""
    wait_until(lambda: client.llen(mark) == count, 120, every=0.05, what=f"{count} runs of {mark}")
    words = [entry.split() for entry in client.lrange(mark, 0, -1)]
    return sorted((float(began), float(ended)) for _, began, ended in words)


def _gaps(runs: list[tuple[float, float]]) -> list[float]:
    return [start - end for (_, end), (start, _) in pairwise(runs)]


def _ms(values: list[float]) -> tuple[float, float]:
    return p50(values) * 1000, p99(values) * 1000


def _many(report: Report, server: EmbeddedServer, count: int) -> None:
    """Park and wake with the calls of a worker, one after the other, without a broker."""
    locks, app = Locks.from_url(server.url), app_of(server)
    text, _ = record_message(app, app.tasks["in_turn"].s("mark", 0).apply_async)
    commands, root = ParkCommands(locks.commands), locks.commands.root(NAME)
    jobs = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(count)]
    start(locks, "first")
    start(locks, "warm", park=text)
    locks.perform(commands.unpark(NAME, "kwarm", publish=False))
    before, began = used_memory(server), time.perf_counter()
    for job in jobs:
        start(locks, job, park=text)
    to_park, each = time.perf_counter() - began, (used_memory(server) - before) / count - len(text)
    began = time.perf_counter()
    order = list(wake_all(locks, commands, root, "first"))
    to_wake = time.perf_counter() - began
    assert len(order) == count
    moved = sum(one != two for one, two in zip(order, jobs, strict=True))
    left = server.ask("KEYS", "*")
    locks.close()
    report.add(f"seconds to park {count:,} of one lock", "", "", round(to_park, 2))
    report.add(f"seconds to wake, run and end {count:,}", "", "", round(to_wake, 2))
    report.add("bytes of a message", "", "", len(text))
    report.add("bytes beyond the message of a parked task", "", "", round(each))
    report.add("woken in another order", "", "", moved)
    report.add("keys left at the end", "", "", len(left) if isinstance(left, list) else 0)
    report.at_most("a parked task beyond its message", 0.5, each / 1000, " kB")
    report.at_most("woken in another order", 0, moved)


def wake_all(locks: Locks, commands: ParkCommands, root: str, running: str) -> Iterator[str]:
    """Yield the task ids in the order in which they are woken; each runs and ends."""
    while True:
        locks.perform(locks.commands.release(NAME, f"run-{running}"))
        due = locks.perform(commands.poll(root))
        if not due.messages:
            return
        [message] = due.messages
        locks.perform(commands.confirm(root, due.messages))
        running = message.token[1:]
        start(locks, running)
        yield running


def start(locks: Locks, job: str, park: str = "", group: str = "") -> None:
    """Acquire as a worker does for a task; park its message if the lock is busy."""
    holder = Holder(task_id=job, task=NAME)
    request = (
        ParkRequest(holder._replace(retries=-1), 1, TTL, park, 10 * MANY, group) if park else None
    )
    extras = AcquireExtras(park=request)
    locks.perform(locks.commands.acquire(LockSpec(NAME, TTL), f"run-{job}", holder, extras))


def _round_trips(report: Report, server: EmbeddedServer) -> None:
    """Count the script calls of a worker's runs, by the server's own statistics."""
    from tests.support.parking_strikes import HOLDER, Process
    from tests.support.parking_strikes import NAME as LOCK

    process = Process(server.url)
    locks = Locks.from_url(server.url)

    def handle(task_id: str) -> int:
        process.app.tasks["work"].apply_async(task_id=task_id)
        before = script_calls(server)
        process.handle_message()
        return script_calls(server) - before

    handle("warm")
    free = handle("free")
    locks.perform(locks.commands.acquire(LockSpec(LOCK, 600.0), HOLDER, Holder()))
    handle("warm2")
    busy = handle("busy")
    locks.close()
    report.add("round trips of a run whose lock is free", "", "", free)
    report.add("round trips of a run that is parked", "", "", busy)
    report.at_most("round trips of a run whose lock is free", 2, free)
    report.at_most("round trips to park, after the acquire", 1, busy - 1)
