"""No-op tasks a second, from publish to result: plain Celery, ours, the recipe and the peers.

All run on one server, each in its own environment with its own worker; the others idle while one
is timed. A round times each of them once, in random order and after a few tasks that do not count
(an idle process starts slowly). A ratio is taken within its round, so that other load affects both
sides of it. A process may be faster than another of the same program for its whole
life, because of its memory layout: so there are several generations of workers. On a busy machine
the processor time of a task, in its caller, server and worker together, says more than the clock:
it is shown too. The spread of single rounds is below the table.
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
# A candidate with at most this many tasks a second is timed once with each generation.
SLOW = 20
# The time of a round, and the most tasks in it.
ROUND_SECONDS, MAX_TASKS = 0.35, 120


Measured = dict[tuple[int, int], float]


class Figures(NamedTuple):
    """The figures of one candidate in one pool, by generation and round."""

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
                measure(ready, outcome, generation, lots)
                threads = threads or {
                    contender.name: threads_of(contender.worker.pid) for contender in ready
                }
    _fill(report, outcomes, absent)
    _judge(report, outcomes)
    report.at_most("commands to the lock server a locked task", 2, _commands_a_task(server))
    report.at_most("threads more in a worker's main process", 1, threads[OURS] - threads[PLAIN])
    report.notes.append(_spread(outcomes))
    report.notes.append(_surroundings(before, absent))
    return report


def measure(ready: Sequence[Contender], outcome: Outcome, generation: int, lots: Random) -> None:
    """Time each contender once in each round, in random order."""
    counts = {contender.name: _count(contender) for contender in ready}
    for draw in range(ROUNDS):
        for contender in lots.sample(ready, len(ready)):
            count, figures = (
                counts[contender.name],
                outcome.setdefault(contender.name, Figures({}, {})),
            )
            if draw and count < SLOW * ROUND_SECONDS:
                continue
            contender.ask("done", min(RUN_UP, count))
            spent = contender.processor_time()
            figures.rates[generation, draw] = count / contender.ask("done", count)
            figures.costs[generation, draw] = (contender.processor_time() - spent) / count


def _count(contender: Contender) -> int:
    """Return how many tasks fit into a round: a slow candidate would take minutes otherwise."""
    few = 2 / contender.ask("done", 2)
    rate = WARM_UP / contender.ask("done", WARM_UP) if few > WARM_UP / 6 else few
    return max(2, min(MAX_TASKS, round(rate * ROUND_SECONDS)))


def ratios(ours: Measured, other: Measured) -> list[float]:
    """Return the ratio of each round."""
    return [ours[key] / other[key] for key in ours if key in other]


def ratio(ours: Measured, other: Measured) -> float:
    return p50(ratios(ours, other))


def _fill(report: Report, outcomes: dict[str, Outcome], absent: dict[str, str]) -> None:
    for name in CANDIDATES:
        if name in absent:
            report.add(name, *[""] * 3 * len(outcomes))
            report.notes.append(f"{name} {absent[name]}.")
            continue
        cells: list[str | float] = []
        for outcome in outcomes.values():
            rates, costs = outcome[name]
            against_plain = ratio(rates, outcome[PLAIN].rates)
            rate, cost = p50([*rates.values()]), p50([*costs.values()])
            cells += [f"{rate:.3g}", against_plain, cost * 1e3]
        report.add(name, *cells)


def _judge(report: Report, outcomes: dict[str, Outcome]) -> None:
    for pool, outcome in outcomes.items():
        ours, plain = outcome[OURS], outcome[PLAIN]
        if pool.startswith("prefork"):
            report.at_least(f"against plain, {pool}", 0.9, ratio(ours.rates, plain.rates))
            cost = ratio(plain.costs, ours.costs)
            report.at_least(f"the same by processor time, {pool}", 0.9, cost)
        for name in (peer for peer in (COOKBOOK, *PEERS) if peer in outcome):
            other = outcome[name]
            report.at_least(f"against {name}, {pool}", 1, ratio(ours.rates, other.rates))


def _spread(outcomes: dict[str, Outcome]) -> str:
    """Describe the spread of single rounds, and of the medians of the generations."""
    sentences = []
    for pool, outcome in outcomes.items():
        ours, plain = outcome[OURS].rates, outcome[PLAIN].rates
        low, _, high = quantiles(ratios(ours, plain), n=4)
        medians = [
            ratio({key: ours[key] for key in ours if key[0] == generation}, plain)
            for generation in range(GENERATIONS)
        ]
        sentences.append(
            f"{pool}, ours to plain: half of all rounds between {low:.2f} and {high:.2f}, medians "
            f"of the generations from {min(medians):.2f} to {max(medians):.2f}"
        )
    return ". ".join(sentences) + "."


def _commands_a_task(server: EmbeddedServer) -> float:
    """Count on a separate lock server, without the handshakes of connections."""
    count = 300
    with EmbeddedServer() as locks:
        contender = start(OURS, server, POOLS["prefork -c2"], locks.url)
        try:
            contender.ask("done", WARM_UP)
            before = sent(locks)
            contender.ask("done", count)
            return (sent(locks) - before) / count
        finally:
            contender.stop()


def sent(server: EmbeddedServer) -> int:
    """Return the calls of clients; the server also counts those that a script makes."""
    stats = server.info("commandstats")
    scripts = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("eval", "evalsha")]
    return sum(int(line.split(",")[0].removeprefix("calls=")) for line in scripts)


def _surroundings(before: str, absent: dict[str, str]) -> str:
    peers = ", ".join(f"{name} {release(name)}" for name in PEERS if name not in absent)
    return (
        f"Celery {version('celery')}, results stored; {peers}, each with its documented defaults; "
        "a key for each call. celery-heimdall waits a second in each task for the lock that its "
        "own message holds. "
        f"Load at the start: {before}; at the end: {load()}. Rates are medians of {ROUNDS} "
        f"rounds with each of {GENERATIONS} generations of workers, ratios medians of the ratios "
        "within each round."
    )
