"""Rounds of no-op tasks: publishing, running, and both at once, of several candidates in turns.

A round times each candidate once, in random order and after a few tasks that do not count (an idle
process starts slowly). Three things are timed:

publish  the worker is stopped (SIGSTOP), the caller publishes
run      the worker goes on and runs what waits, until the last result is stored
both     the worker runs while the caller publishes; neither waits for the other

The worker has one half of the cores, caller and server the other: so rounds differ less.
Processor time is that of caller, server and worker together. On a busy machine it says more than
the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from statistics import median

from benchmarks.intervals import Interval, Measured, differences, interval_of, ratios
from benchmarks.peers import Contender

PUBLISH, RUN, BOTH = "publish", "run", "both"
PHASES = (PUBLISH, RUN, BOTH)
WARM_UP, RUN_UP = 60, 20
# A candidate with at most this many tasks a second is timed once with each generation.
SLOW = 20
# The time of a round, and the most tasks in it.
ROUND_SECONDS, MAX_TASKS = 0.35, 100


class Figures:
    """The seconds of a task of one candidate in one phase, by generation and round."""

    def __init__(self) -> None:
        self.wall: Measured = {}
        self.cpu: Measured = {}

    def ratio(self, other: Figures) -> Interval:
        """Return the ratio to another candidate, by the clock."""
        return interval_of(ratios(self.wall, other.wall))

    def cpu_ratio(self, other: Figures) -> Interval:
        return interval_of(ratios(self.cpu, other.cpu))

    def above(self, other: Figures) -> Interval:
        """Return the seconds more than another candidate, by the clock."""
        return interval_of(differences(self.wall, other.wall))

    def cpu_above(self, other: Figures) -> Interval:
        return interval_of(differences(self.cpu, other.cpu))

    @property
    def middle(self) -> float:
        return median(self.wall.values())

    @property
    def cpu_middle(self) -> float:
        return median(self.cpu.values())


class Outcome:
    """The figures of all candidates, by name and phase."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str], Figures] = defaultdict(Figures)

    def of(self, name: str, phase: str = BOTH) -> Figures:
        return self._figures[name, phase]


def measure(
    ready: Sequence[Contender],
    outcome: Outcome,
    generation: int,
    lots: Random,
    rounds: int,
    phases: Sequence[str] = (BOTH,),
) -> None:
    """Time each contender once in each round, in random order."""
    for contender in ready:
        contender.pin()
    counts = {contender.name: _count(contender) for contender in ready}
    for draw in range(rounds):
        for contender in lots.sample(ready, len(ready)):
            count = counts[contender.name]
            if draw and count < SLOW * ROUND_SECONDS:
                continue
            contender.ask("done", min(RUN_UP, count))
            for phase in phases:
                _time(contender, phase, count, outcome.of(contender.name, phase), generation, draw)


def _time(
    contender: Contender, phase: str, count: int, figures: Figures, generation: int, draw: int
) -> None:
    calls = {
        PUBLISH: ("publish", count, contender.worker.pid),
        RUN: ("run", contender.worker.pid),
        BOTH: ("done", count),
    }
    spent = contender.processor_time()
    figures.wall[generation, draw] = contender.ask(*calls[phase]) / count
    figures.cpu[generation, draw] = (contender.processor_time() - spent) / count


def _count(contender: Contender) -> int:
    """Return how many tasks fit into a round: a slow candidate would take minutes otherwise."""
    few = 2 / contender.ask("done", 2)
    rate = WARM_UP / contender.ask("done", WARM_UP) if few > WARM_UP / 6 else few
    return max(2, min(MAX_TASKS, round(rate * ROUND_SECONDS)))
