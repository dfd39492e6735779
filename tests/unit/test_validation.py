"""Wrong input is refused where it is written, with a sentence that says what is allowed."""

from decimal import Decimal
from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.types import LockSpec
from celery_locks.validation import MAX_SECONDS, check_name

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "must be a text that is not empty"),
        (None, "must be a text that is not empty, not None"),
        (b"a", "must be a text"),
        (5, "must be a text"),
        ("x" * 513, "is 513 bytes long; 512 is the most"),
        ("é" * 257, "is 514 bytes long; 512 is the most"),
        ("a\ud800", "has no UTF-8 form"),
    ],
)
def test_name_that_is_refused(name: Any, sentence: str) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        LockSpec(name)


@pytest.mark.parametrize("name", ["x", "x" * 512, "é" * 256, "\0", "\n", "{}", "-", "🔒"])
def test_name_that_is_allowed(name: str) -> None:
    check_name(name)


def test_name_in_a_message_is_short() -> None:
    with pytest.raises(LockUsageError) as caught:
        LockSpec("x" * 100_000)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("ttl", [NAN, INF, -INF, "5", None, True, Decimal(5), 1 + 2j])
def test_ttl_that_is_no_finite_number(ttl: Any) -> None:
    with pytest.raises(LockUsageError, match="ttl must be a finite number of seconds"):
        LockSpec("a", ttl)


@pytest.mark.parametrize("ttl", [0, 0.999, -1, -30.0])
def test_ttl_that_is_too_short(ttl: float) -> None:
    with pytest.raises(LockUsageError, match="below 1 s there is no time to renew it"):
        LockSpec("a", ttl)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True, None, NAN])
def test_limit_that_is_refused(limit: Any) -> None:
    with pytest.raises(LockUsageError, match="must be a whole number from 1"):
        LockSpec("a", 30, limit)


@pytest.mark.parametrize("seconds", [-0.1, NAN, INF, "1", True])
@pytest.mark.parametrize("option", ["wait", "at_least"])
def test_seconds_that_are_refused(option: str, seconds: Any) -> None:
    with pytest.raises(LockUsageError, match=f"{option} must be a number of seconds from 0"):
        LockSpec("a", **{option: seconds})


@pytest.mark.parametrize("option", ["ttl", "wait", "at_least"])
@pytest.mark.parametrize("value", [1e18, 10**400, MAX_SECONDS + 1])
def test_seconds_beyond_ten_years_are_refused(option: str, value: float) -> None:
    """The server counts in milliseconds and keeps what it is told: such a lock would stay."""
    with pytest.raises(LockUsageError, match=f"{option} is above ten years"):
        LockSpec("a", **{option: value})


def test_limit_has_an_upper_bound() -> None:
    with pytest.raises(LockUsageError, match="from 1 to 1000000"):
        LockSpec("a", limit=10**400)
