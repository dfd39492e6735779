"""The cost of a rate: for a task that it lets start, and for tasks that it delays.

The first is timed as in ``tasks.py``: a locked task with a rate that never delays it, and one
without, in random order within each round, with several generations of workers. The second is
counted at a lock server of its own: the calls of clients for each of many tasks of one rate,
without those of an idle worker, which looks for parked tasks every two seconds. Nothing starts
while the tasks come for the first time, so that every one of them is delayed.
"""

from __future__ import annotations

from contextlib import closing
from random import Random
from time import sleep

from benchmarks.effort import FULL, Effort
from benchmarks.peers import DELAYED, OURS, RATED, contenders, load, start
from benchmarks.report import Report
from benchmarks.rounds import WARM_UP, Outcome, measure
from benchmarks.servertime import script_calls
from benchmarks.tasks import PREFORK
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

ROUNDS, GENERATIONS = 12, 5
DELAYED_TASKS, PATIENCE = 10_000, 1200
# The rate is pushed back for this long: the worker receives all tasks meanwhile.
PUSHED_BACK = 60
# The calls of an idle worker are counted for this long.
IDLE = 20


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = ("", "tasks a second", "time × without a rate", "CPU ms", "CPU × without a rate")
    report = Report("rates", "Locked no-op tasks with a rate, prefork -c2", columns)
    before, outcome = load(), _measured(server, effort)
    for name in (OURS, RATED):
        _fill(report, outcome, name)
    ours, rated = outcome.of(OURS), outcome.of(RATED)
    report.at_most("time of a task, with a rate to without", 1.05, rated.ratio(ours).middle)
    report.at_most("the same by processor time", 1.05, rated.cpu_ratio(ours).middle)
    _add_delayed(report, server, effort)
    report.notes.append(
        f"Medians of {effort.count(ROUNDS, least=2)} rounds with each of "
        f"{effort.count(GENERATIONS)} generations of workers, with their 95 % intervals. "
        f"Load at the start: {before}; at the end: {load()}."
    )
    return report


def _measured(server: EmbeddedServer, effort: Effort) -> Outcome:
    outcome, lots = Outcome(), Random(1)
    for generation in range(effort.count(GENERATIONS)):
        with contenders((OURS, RATED), server, PREFORK) as (ready, absent):
            assert not absent, absent
            measure(ready, outcome, generation, lots, effort.count(ROUNDS, least=2))
    return outcome


def _fill(report: Report, outcome: Outcome, name: str) -> None:
    figures, ours = outcome.of(name), outcome.of(OURS)
    ratios = figures.ratio(ours).text(), figures.cpu_ratio(ours).text()
    report.add(name, f"{1 / figures.middle:.3g}", ratios[0], figures.cpu_middle * 1e3, ratios[1])


def _add_delayed(report: Report, server: EmbeddedServer, effort: Effort) -> None:
    count, pushed_back = effort.count(DELAYED_TASKS), effort.count(PUSHED_BACK)
    commands, seconds = _count_delayed(server, count, pushed_back)
    # An idle worker's calls are taken off on average: a few in 10,000 are left, or too many.
    asked = round(commands - 1, 2)
    report.at_most(f"calls for each of {count:,} delayed tasks, beside its release", 2, asked)
    report.notes.append(
        f"A delayed task made {commands:.4f} calls to the lock server: two that ask for its start, "
        f"when it comes first and when it comes back, and the release of its lock. All {count:,} "
        f"ran in {seconds:.0f} s; the rate is 100/s and was pushed back for the first "
        f"{pushed_back} s."
    )


def _count_delayed(server: EmbeddedServer, count: int, pushed_back: int) -> tuple[float, float]:
    """Return the calls to the lock server for each task, and the seconds until all have run."""
    with EmbeddedServer() as locks:
        contender = start(DELAYED, server, PREFORK, locks.url)
        try:
            contender.ask("all_run", WARM_UP, PATIENCE)
            began = script_calls(locks)
            sleep(IDLE)
            idle = (script_calls(locks) - began) / IDLE
            with closing(Locks.from_url(locks.url)) as own:
                own.push_back("bench", pushed_back)
            before = script_calls(locks)
            seconds = contender.ask("all_run", count, PATIENCE)
            return (script_calls(locks) - before - idle * seconds) / count, seconds
        finally:
            contender.stop()
