"""Confidence intervals of medians, by the bootstrap over generations and rounds. Pure.

Rounds of one generation of workers resemble each other: a process may be faster than another of the
same program for its whole life, because of its memory layout. So a resample first draws
generations, and then rounds within each of them; an interval over all rounds as if they were
independent would be too narrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from random import Random
from statistics import median
from typing import NamedTuple

LEVEL, RESAMPLES = 0.95, 1000
# Two runs differ by less than this in 95 of 100 pairs of runs, if each has such an interval: the
# difference of two independent values has √2 times the width of one.
AGREEMENT = 0.02
WANTED = AGREEMENT / sqrt(2)

# By generation and round.
Measured = dict[tuple[int, int], float]


class Interval(NamedTuple):
    """The median, and the bounds between which it lies at the confidence level."""

    low: float
    middle: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a share of its middle."""
        return (self.high - self.low) / 2 / abs(self.middle) if self.middle else 0.0

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        low, middle, high = (f"{value * scale:,.{digits}f}" for value in self)
        return f"{middle} ({low} to {high})"


def interval_of(measured: Mapping[tuple[int, int], float], seed: int = 1) -> Interval:
    """Return the median of all rounds and its interval; the same input gives the same output."""
    groups = _by_generation(measured)
    dice = Random(seed)
    medians = sorted(median(_resample(groups, dice)) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - LEVEL) / 2)
    return Interval(medians[cut], median(measured.values()), medians[-1 - cut])


def _by_generation(measured: Mapping[tuple[int, int], float]) -> list[list[float]]:
    groups: dict[int, list[float]] = defaultdict(list)
    for (generation, _), value in measured.items():
        groups[generation].append(value)
    return list(groups.values())


def _resample(groups: Sequence[Sequence[float]], dice: Random) -> list[float]:
    drawn = dice.choices(groups, k=len(groups))
    return [value for group in drawn for value in dice.choices(group, k=len(group))]


def ratios(one: Measured, other: Measured) -> Measured:
    """Return the ratio within each round, so that other load affects both sides of it."""
    return {key: one[key] / other[key] for key in one if key in other}


def differences(one: Measured, other: Measured) -> Measured:
    """Return the difference within each round."""
    return {key: one[key] - other[key] for key in one if key in other}
