"""No-op tasks a second, from publish to result: plain Celery, ours, the recipe and the peers.

All run on one server, each in its own environment with its own worker; the others idle while one
is timed. A round times each of them once, and a ratio is taken within its round, so that what else
the machine does meanwhile falls on both sides of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers import (
    CANDIDATES,
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
from celery_locks.testing.servers import EmbeddedServer

POOLS = {"prefork -c2": ("-P", "prefork", "-c", "2"), "threads -c2": ("-P", "threads", "-c", "2")}
ROUNDS, WARM_UP = 9, 60
# As many tasks a round as fit into this, but no more than that.
ROUND_SECONDS, MOST = 1.0, 400

Rates = dict[str, list[float]]


def run(server: EmbeddedServer) -> Report:
    report = Report(
        "tasks",
        "No-op tasks a second, publish to result stored",
        ("", *(f"{pool}{what}" for pool in POOLS for what in ("", ", × plain"))),
    )
    before = load()
    rates: dict[str, Rates] = {}
    absent: dict[str, str] = {}
    extra_threads = 0
    for pool, words in POOLS.items():
        with contenders(CANDIDATES, server, words) as (ready, missing):
            absent |= missing
            rates[pool] = _rates(ready)
            if pool == "prefork -c2":
                threads = {one.name: threads_of(one.worker.pid) for one in ready}
                extra_threads = threads[OURS] - threads[PLAIN]
    _fill(report, rates, absent)
    _judge(report, rates)
    report.at_most("commands to the lock server per locked task", 2, _commands_a_task(server))
    report.at_most("threads more in a worker's main process", 1, extra_threads)
    report.notes.append(_surroundings(before))
    return report


def _rates(ready: Sequence[Contender]) -> Rates:
    counts = {one.name: _count(one) for one in ready}
    rates: Rates = {one.name: [] for one in ready}
    for number in range(ROUNDS):
        # Every other round backwards: who comes first must not always be the same.
        for one in ready if number % 2 else reversed(ready):
            count = counts[one.name]
            rates[one.name].append(count / one.ask("done", count))
    return rates


def _count(one: Contender) -> int:
    """How many tasks it does in a round's time; a slow one would else take minutes."""
    few = 2 / one.ask("done", 2)
    rate = WARM_UP / one.ask("done", WARM_UP) if few > WARM_UP / 3 else few
    return max(2, min(MOST, round(rate * ROUND_SECONDS)))


def _ratio(rates: Rates, name: str, other: str = PLAIN) -> float:
    return p50([one / two for one, two in zip(rates[name], rates[other], strict=True)])


def _fill(report: Report, rates: dict[str, Rates], absent: dict[str, str]) -> None:
    for name in CANDIDATES:
        if name in absent:
            report.add(name, *[""] * 2 * len(rates))
            report.notes.append(f"{name} {absent[name]}.")
            continue
        cells: list[str | float] = []
        for each in rates.values():
            cells += [str(round(p50(each[name]))), _ratio(each, name)]
        report.add(name, *cells)


def _judge(report: Report, rates: dict[str, Rates]) -> None:
    for pool, each in rates.items():
        if pool.startswith("prefork"):
            report.at_least(f"celery-locks against plain, {pool}", 0.9, _ratio(each, OURS))
        others = [name for name in each if name not in (OURS, PLAIN)]
        nearest = max(others, key=lambda name: p50(each[name]))
        worst = min(_ratio(each, OURS, name) for name in others)
        report.at_least(f"against the fastest other ({nearest}), {pool}", 1, worst)


def _commands_a_task(server: EmbeddedServer) -> float:
    """On a lock server apart, where nothing else is counted; greetings of connections are not."""
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


def _surroundings(before: str) -> str:
    said = []
    for name in PEERS:
        said.append(f"{name} {release(name)}")
    return (
        f"{', '.join(said)}, each with its documented defaults, a key for each call. "
        f"Load when it began: {before}; when it ended: {load()}. "
        f"Rates are medians of {ROUNDS} rounds, ratios medians of the ratios within each round."
    )
