"""The cost of a rate: for a task that it lets start, and for tasks that it delays.

The first is timed as in ``tasks.py``: a locked task with a rate that never delays it, and one
without, in random order within each round, with several generations of workers. The second is
counted at a lock server of its own: the calls of clients for each of many tasks of one rate.
Nothing starts while they come for the first time, so that every one of them is delayed.
"""

from __future__ import annotations

from contextlib import closing
from random import Random
from statistics import quantiles

from benchmarks.peers import DELAYED, OURS, RATED, contenders, load, start
from benchmarks.report import Report
from benchmarks.tasks import ROUNDS, WARM_UP, Outcome, measure, ratio, ratios, sent
from benchmarks.timing import p50
from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer

POOL = ("-P", "prefork", "-c", "2")
GENERATIONS = 4
DELAYED_TASKS, PATIENCE = 10_000, 1200
# The rate is pushed back for this long: even a busy worker receives all tasks meanwhile.
PUSHED_BACK = 150


def run(server: EmbeddedServer) -> Report:
    columns = ("", "tasks a second", "× without a rate", "CPU ms")
    report = Report("rates", "Locked no-op tasks with a rate, prefork -c2", columns)
    before, outcome, lots = load(), Outcome(), Random(1)
    for generation in range(GENERATIONS):
        with contenders((OURS, RATED), server, POOL) as (ready, absent):
            assert not absent, absent
            measure(ready, outcome, generation, lots)
    ours, rated = outcome[OURS], outcome[RATED]
    for name, figures in outcome.items():
        taken = ratio(ours.rates, figures.rates)
        cost = p50([*figures.costs.values()]) * 1e3
        report.add(name, f"{p50([*figures.rates.values()]):.3g}", taken, cost)
    report.at_most("time of a task, with a rate to without", 1.05, ratio(ours.rates, rated.rates))
    report.at_most("the same by processor time", 1.05, ratio(rated.costs, ours.costs))
    commands, seconds = _count_delayed(server)
    report.at_most(
        f"calls for each of {DELAYED_TASKS:,} delayed tasks, beside its release", 2, commands - 1
    )
    low, _, high = quantiles(ratios(ours.rates, rated.rates), n=4)
    report.notes.append(
        f"The time with a rate to that without: half of all rounds between {low:.2f} and "
        f"{high:.2f}; medians of {ROUNDS} rounds with each of {GENERATIONS} generations of workers."
    )
    report.notes.append(
        f"A delayed task made {commands:.4f} calls to the lock server: two that ask for its start, "
        f"when it comes first and when it comes back, and the release of its lock. All "
        f"{DELAYED_TASKS:,} ran in {seconds:.0f} s; the rate is 50/s and was pushed back for the "
        f"first {PUSHED_BACK} s. Load at the start: {before}; at the end: {load()}."
    )
    return report


def _count_delayed(server: EmbeddedServer) -> tuple[float, float]:
    """Return the calls to the lock server for each task, and the seconds until all have run."""
    with EmbeddedServer() as locks:
        contender = start(DELAYED, server, POOL, locks.url)
        try:
            contender.ask("all_run", WARM_UP, PATIENCE)
            with closing(Locks.from_url(locks.url)) as own:
                own.push_back("bench", PUSHED_BACK)
            before = sent(locks)
            seconds = contender.ask("all_run", DELAYED_TASKS, PATIENCE)
            return (sent(locks) - before) / DELAYED_TASKS, seconds
        finally:
            contender.stop()
