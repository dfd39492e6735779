"""The statistics of the benchmarks, on data whose answer is known."""

from __future__ import annotations

from random import Random
from statistics import mean, median

import pytest

from benchmarks.intervals import WANTED, Interval, differences, interval_of, ratios


def measured(generations: int, rounds: int, seed: int, between: float, within: float) -> dict:
    """Draw values around 1, with a spread between generations and one within each."""
    dice = Random(seed)
    levels = [dice.gauss(1, between) for _ in range(generations)]
    return {
        (generation, number): dice.gauss(level, within)
        for generation, level in enumerate(levels)
        for number in range(rounds)
    }


def test_interval_of_equal_values_has_no_width() -> None:
    """Nothing varies, so nothing is uncertain."""
    assert interval_of({(0, n): 3.0 for n in range(10)}) == Interval(3.0, 3.0, 3.0)


def test_interval_has_the_median_of_the_data() -> None:
    values = measured(4, 10, 1, 0.01, 0.05)
    found = interval_of(values)
    assert found.middle == median(values.values())
    assert found.low < found.middle < found.high


def test_interval_contains_the_true_value_about_as_often_as_it_says() -> None:
    """A 95 % interval that misses every fifth time would let two runs disagree."""
    hits = 0
    for seed in range(60):
        found = interval_of(measured(10, 8, seed, between=0.02, within=0.05))
        hits += found.low <= 1 <= found.high
    assert hits >= 51


def test_interval_sees_the_spread_between_generations() -> None:
    """Workers that differ for their whole life: more rounds of the same ones do not help."""
    same = interval_of(measured(6, 20, 3, between=0.0, within=0.02))
    different = interval_of(measured(6, 20, 3, between=0.05, within=0.02))
    assert different.half_width > 2 * same.half_width


def test_interval_is_narrower_with_more_generations() -> None:
    few = interval_of(measured(4, 8, 5, 0.03, 0.05))
    many = interval_of(measured(64, 8, 5, 0.03, 0.05))
    assert many.half_width < few.half_width / 2


def test_two_runs_with_narrow_intervals_agree() -> None:
    """The promise of the report: with such intervals, 19 of 20 pairs of runs agree within 2 %."""
    # Enough rounds for a half-width just below what is wanted.
    runs = [interval_of(measured(20, 8, seed, between=0.01, within=0.05)) for seed in range(40)]
    assert mean(run.half_width for run in runs) <= WANTED
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    agree = sum(abs(one.middle / two.middle - 1) <= 0.02 for one, two in pairs)
    assert agree >= len(pairs) - 2


def test_same_data_give_the_same_interval() -> None:
    """A table that is calculated again from its file must not change."""
    values = measured(4, 8, 7, 0.02, 0.05)
    assert interval_of(values) == interval_of(dict(values))


@pytest.mark.parametrize(("function", "expected"), [(ratios, 2.0), (differences, 1.0)])
def test_rounds_are_compared_with_themselves(function: object, expected: float) -> None:
    """A slow round is slow for both; a round that only one has says nothing."""
    assert callable(function)
    one, other = {(0, 0): 2.0, (0, 1): 4.0, (1, 0): 9.0}, {(0, 0): 1.0, (0, 1): 2.0}
    found = function(one, other)
    assert found.keys() == other.keys()
    assert found[0, 0] == expected


def test_text_has_the_interval() -> None:
    assert Interval(0.98, 1.0, 1.021).text() == "1.00 (0.98 to 1.02)"
    assert Interval(0.001, 0.002, 0.003).text(0, 1e6) == "2,000 (1,000 to 3,000)"
