"""No-op tasks a second, from publish to result: plain Celery, ours, the recipe and the peers.

All run on one server, each in its own environment with its own worker; the others idle while one
is timed. A round times each of them once, in an order drawn by lot and each after a few tasks that
do not count (whoever has idled starts slowly), and a ratio is taken within its round, so that what
else the machine does meanwhile falls on both sides of it. One process is faster than its like for
as long as it lives, by where its memory came to lie: so there are several generations of workers.
On a busy machine the processor time that a task takes, in its caller, server and worker together,
says more than the clock: it is given too. How far single rounds lie apart is said below the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from random import Random
from statistics import quantiles
from typing import NamedTuple

from benchmarks.peers import (
    CANDIDATES,
    COOKBOOK,
    OURS,
    PEERS,
    PLAIN,
    Contender,
    contenders,
    load,
    release,
    start,
    threads_of,
)
from benchmarks.report import Report
from benchmarks.timing import p50
from tests.servers.embedded import EmbeddedServer

POOLS = {"prefork -c2": ("-P", "prefork", "-c", "2"), "threads -c2": ("-P", "threads", "-c", "2")}
GENERATIONS, ROUNDS, WARM_UP = 6, 16, 60
RUN_UP = 20
# Who does no more than so many a second is timed once with each generation.
SLOW = 20
# As many tasks a round as fit into this, but no more than that.
ROUND_SECONDS, MOST = 0.35, 120


Measured = dict[tuple[int, int], float]


class Figures(NamedTuple):
    """Of one candidate in one pool, by round: that of the generation and of the draw in it."""

    rates: Measured
    costs: Measured  # seconds of processor time a task


Outcome = dict[str, Figures]


def run(server: EmbeddedServer) -> Report:
    columns = [f"{pool}{what}" for pool in POOLS for what in ("", ", × plain", ", CPU ms")]
    report = Report("tasks", "No-op tasks a second, publish to result stored", ("", *columns))
    before = load()
    outcomes: dict[str, Outcome] = {}
    absent: dict[str, str] = {}
    threads: dict[str, int] = {}
    lots = Random(1)
    for pool, words in POOLS.items():
        outcome = outcomes[pool] = {}
        for generation in range(GENERATIONS):
            with contenders(CANDIDATES, server, words) as (ready, missing):
                absent |= missing
                _measure(ready, outcome, generation, lots)
                threads = threads or {one.name: threads_of(one.worker.pid) for one in ready}
    _fill(report, outcomes, absent)
    _judge(report, outcomes)
    report.at_most("commands to the lock server a locked task", 2, _commands_a_task(server))
    report.at_most("threads more in a worker's main process", 1, threads[OURS] - threads[PLAIN])
    report.notes.append(_spread(outcomes))
    report.notes.append(_surroundings(before, absent))
    return report


def _measure(ready: Sequence[Contender], outcome: Outcome, generation: int, lots: Random) -> None:
    counts = {one.name: _count(one) for one in ready}
    for draw in range(ROUNDS):
        for one in lots.sample(ready, len(ready)):
            count, figures = counts[one.name], outcome.setdefault(one.name, Figures({}, {}))
            if draw and count < SLOW * ROUND_SECONDS:
                continue
            one.ask("done", min(RUN_UP, count))
            spent = one.processor_time()
            figures.rates[generation, draw] = count / one.ask("done", count)
            figures.costs[generation, draw] = (one.processor_time() - spent) / count


def _count(one: Contender) -> int:
    """How many tasks it does in a round's time; a slow one would else take minutes."""
    few = 2 / one.ask("done", 2)
    rate = WARM_UP / one.ask("done", WARM_UP) if few > WARM_UP / 6 else few
    return max(2, min(MOST, round(rate * ROUND_SECONDS)))


def _ratios(ours: Measured, theirs: Measured) -> list[float]:
    return [ours[one] / theirs[one] for one in ours if one in theirs]


def _ratio(ours: Measured, theirs: Measured) -> float:
    return p50(_ratios(ours, theirs))


def _fill(report: Report, outcomes: dict[str, Outcome], absent: dict[str, str]) -> None:
    for name in CANDIDATES:
        if name in absent:
            report.add(name, *[""] * 3 * len(outcomes))
            report.notes.append(f"{name} {absent[name]}.")
            continue
        cells: list[str | float] = []
        for outcome in outcomes.values():
            rates, costs = outcome[name]
            ratio = _ratio(rates, outcome[PLAIN].rates)
            rate, cost = p50([*rates.values()]), p50([*costs.values()])
            cells += [f"{rate:.3g}", ratio, cost * 1e3]
        report.add(name, *cells)


def _judge(report: Report, outcomes: dict[str, Outcome]) -> None:
    for pool, outcome in outcomes.items():
        ours, plain = outcome[OURS], outcome[PLAIN]
        if pool.startswith("prefork"):
            report.at_least(f"against plain, {pool}", 0.9, _ratio(ours.rates, plain.rates))
            cost = _ratio(plain.costs, ours.costs)
            report.at_least(f"the same by processor time, {pool}", 0.9, cost)
        for name in (one for one in (COOKBOOK, *PEERS) if one in outcome):
            theirs = outcome[name]
            report.at_least(f"against {name}, {pool}", 1, _ratio(ours.rates, theirs.rates))


def _spread(outcomes: dict[str, Outcome]) -> str:
    """How much is luck: single rounds, and the medians of the generations."""
    said = []
    for pool, outcome in outcomes.items():
        ours, plain = outcome[OURS].rates, outcome[PLAIN].rates
        low, _, high = quantiles(_ratios(ours, plain), n=4)
        medians = [
            _ratio({one: ours[one] for one in ours if one[0] == generation}, plain)
            for generation in range(GENERATIONS)
        ]
        said.append(
            f"{pool}, ours to plain: half of all rounds between {low:.2f} and {high:.2f}, medians "
            f"of the generations from {min(medians):.2f} to {max(medians):.2f}"
        )
    return ". ".join(said) + "."


def _commands_a_task(server: EmbeddedServer) -> float:
    """On a lock server apart, where nothing else is counted; handshake of connections are not."""
    count = 300
    with EmbeddedServer() as locks:
        one = start(OURS, server, POOLS["prefork -c2"], locks.url)
        try:
            one.ask("done", WARM_UP)
            before = _sent(locks)
            one.ask("done", count)
            return (_sent(locks) - before) / count
        finally:
            one.stop()


def _sent(server: EmbeddedServer) -> int:
    """Calls that clients made; those that a script makes are counted by the server too."""
    stats = server.info("commandstats")
    scripts = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("eval", "evalsha")]
    return sum(int(line.split(",")[0].removeprefix("calls=")) for line in scripts)


def _surroundings(before: str, absent: dict[str, str]) -> str:
    peers = ", ".join(f"{name} {release(name)}" for name in PEERS if name not in absent)
    return (
        f"Celery {version('celery')}, results stored; {peers}, each with its documented defaults; "
        "a key for each call. celery-heimdall waits a second in each task for the lock that its "
        "own message holds. "
        f"Load when it began: {before}; when it ended: {load()}. Rates are medians of {ROUNDS} "
        f"rounds with each of {GENERATIONS} generations of workers, ratios medians of the ratios "
        "within each round."
    )
