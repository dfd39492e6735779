"""Durations, ratios, counts and lists as people read them."""

from __future__ import annotations

import pytest

from celery_locks.admin import format_count, format_duration, format_time
from celery_locks.admin.humanize import format_about, format_position, format_ratio, join_names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (245, "4 min 5 s"), (10920, "3 h 2 min")],
)
def test_format_duration_uses_two_units(seconds: float, text: str) -> None:
    """A clock that is slightly ahead must not show a negative time."""
    assert format_duration(seconds) == text


def test_format_time_is_utc() -> None:
    """Operators in several time zones read the same history."""
    assert format_time(0.0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(("value", "text"), [(34, "3.4"), (99.9, "10"), (124, "12")])
def test_format_ratio_drops_digits_that_say_nothing(value: float, text: str) -> None:
    assert format_ratio(value, 10).removesuffix(".0") == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 locks"), (1, "1 lock"), (2, "2 locks")])
def test_format_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert format_count(count, "lock") == text


def test_format_count_takes_an_irregular_plural() -> None:
    assert format_count(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("a", "'a'"),
        ("ab", "'a' or 'b'"),
        ("abc", "'a', 'b' or 'c'"),
        ("abcde", "'a', 'b', 'c' or 2 more"),
    ],
)
def test_join_names_shows_three(names: str, text: str) -> None:
    """A suggestion that fills the screen is no help."""
    assert join_names(list(names), "or") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "about 1 s"), (30.4, "about 30 s"), (245, "about 4 min"), (10920, "about 3 h 2 min")],
)
def test_format_about_is_no_more_exact_than_an_estimate(seconds: float, text: str) -> None:
    assert format_about(seconds) == text


@pytest.mark.parametrize(("position", "text"), [(1, "first"), (10, "tenth"), (11, "number 11")])
def test_format_position_uses_words_for_small_numbers(position: int, text: str) -> None:
    assert format_position(position) == text
