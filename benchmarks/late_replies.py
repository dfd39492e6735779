"""What it saves not to wait for the reply to a release.

One process runs no-op tasks as a pool child does, with a pause before each, as a child waits for
the main process. Of two tasks without result the first has a handler for its success, so it waits
(``celery_locks/integration/end_of_run.py``). A switch to another process, of its own accord or not,
costs both time: they are counted too. On a busy machine the times say little.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

from celery import Celery
from celery.app.trace import build_tracer

from benchmarks.effort import FULL, Effort
from benchmarks.peers import load
from benchmarks.report import Report
from benchmarks.timing import MICROSECOND, p50
from celery_locks import LockedTask
from celery_locks.core.renewer import renewer
from tests.servers.embedded import EmbeddedServer

ROUNDS, EACH, PAUSE = 40, 50, 0.0005
WAITS, DOES_NOT = "waits for the reply", "does not wait"


class Cost(NamedTuple):
    """What one task took, in seconds, and how often another process had its core meanwhile."""

    wall: float
    processor: float
    switches: float


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    began = load()
    rounds = effort.count(ROUNDS)
    costs = _measure(server, rounds)
    columns = ("a task without result", "p50 µs", "p50 µs of processor time", "switches")
    report = Report("late_replies", "The reply to a release, waited for or read later", columns)
    for name, taken in costs.items():
        wall, processor, _ = (p50(values) for values in zip(*taken, strict=True))
        switches = fmean(cost.switches for cost in taken)
        report.add(name, wall / MICROSECOND, processor / MICROSECOND, switches)
    walls = {name: p50([cost.wall for cost in taken]) for name, taken in costs.items()}
    report.at_most("does not wait, against waits", 0.95, walls[DOES_NOT] / walls[WAITS])
    report.notes.append(f"{rounds} rounds of {EACH} tasks in turns. Load: {began}, then {load()}.")
    return report


def _measure(server: EmbeddedServer, rounds: int) -> dict[str, list[Cost]]:
    app = Celery("late", broker="memory://", set_as_current=False)
    app.conf.update(locks_url=server.url, task_ignore_result=True)
    runs = {
        WAITS: _runner(app, "waits", on_success=lambda *_: None),
        DOES_NOT: _runner(app, "does_not"),
    }
    for run_task in runs.values():
        for number in range(EACH):
            run_task(number)
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run_task in runs.items():
            costs[name] += [_cost(run_task, number) for number in range(EACH)]
    renewer.wait_idle(5.0)
    return costs


def _runner(app: Celery, name: str, **handlers: Any) -> Callable[[int], None]:
    def noop(key: int) -> None: ...

    task = app.task(name=name, base=LockedTask, shared=False, lock_key="{task}:{key}", **handlers)(
        noop
    )
    trace = build_tracer(name, task, app=app)

    def run_task(key: int) -> None:
        request = {"id": f"{name}-{key}", "ignore_result": True, "called_directly": False}
        trace(request["id"], (key,), {}, request)

    return run_task


def _cost(run_task: Callable[[int], None], number: int) -> Cost:
    time.sleep(PAUSE)
    switches, processor, began = _switches(), time.thread_time(), time.perf_counter()
    run_task(number)
    return Cost(
        time.perf_counter() - began,
        time.thread_time() - processor,
        _switches() - switches,
    )


def _switches() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw
