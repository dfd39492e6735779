"""The counters behind the metrics: processes add to them, and whoever is scraped reads the sums."""

from __future__ import annotations

from celery_locks.admin.overrides import list_patterns
from celery_locks.admin.rates import list_rates
from celery_locks.core.locks import Locks
from celery_locks.store.commands.metrics import (
    BATCH,
    Counts,
    MetricField,
    MetricsCommands,
    Tally,
)

__all__ = [
    "BATCH",
    "CountSender",
    "Counts",
    "Increments",
    "MetricField",
    "Tally",
    "read_counts",
    "read_tallies",
]

Increments = list[tuple[MetricField, int]]

# Names of tasks come from code and are few; what a program calls itself may be anything.
_MOST_TASKS = 1000
_OTHER = "(other)"


class CountSender:
    """Sends the counts of one process; used by one thread, with a connection of its own."""

    def __init__(self, locks: Locks) -> None:
        self._store = locks.store_for_thread()
        self._commands = MetricsCommands(locks.commands)

    def send(self, process: str, number: int, increments: Increments) -> None:
        """Add a batch to the sums; the server ignores one whose number it has counted already."""
        self._store.perform(self._commands.count(process, number, increments))


def read_counts(locks: Locks) -> Counts:
    """Read the sums over all processes."""
    commands, found, cursor = MetricsCommands(locks.commands), dict[MetricField, int](), ""
    while cursor != "0":
        page, cursor = locks.perform(commands.counts(cursor or "0"))
        found |= page
    return found


def read_tallies(locks: Locks) -> dict[str, Tally]:
    """Count the locks that are held or waited for now, by task; those of plain code under "".

    ``paused`` counts locks, patterns and rates, and is under "" only.
    """
    commands, found, cursor = MetricsCommands(locks.commands), {"": Tally()}, "0:0"
    while cursor:
        page, cursor = locks.run(commands.tally(cursor))
        for task, tally in page:
            name = task if task in found or len(found) < _MOST_TASKS else _OTHER
            found[name] = found.get(name, Tally()) + tally
    paused_rates = sum(1 for rate in list_rates(locks) if rate.pause)
    found[""] += Tally(paused=len(list_patterns(locks)) + paused_rates)
    return found
