"""Rates as users write them; wrong ones are refused where they are written."""

from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.rates import Rate


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        ("20/s", "20/s:51250:0"),
        ("30/m", "30/m:2000834:0"),
        (("30/m", "1000/h"), "30/m:2000834:0 1000/h:3600025:0"),
        (["1/d"], "1/d:86400025000:0"),
    ],
)
def test_rate_becomes_intervals(rate: Any, text: str) -> None:
    assert Rate.parse(rate).text == text


def test_cost_multiplies_the_interval_and_burst_the_tolerance() -> None:
    assert Rate.parse("20/s", burst=5, cost=2.5).text == "20/s:128125:205000:2.5"


@pytest.mark.parametrize(
    ("rate", "options"),
    [
        ("30", {}),
        ("0/m", {}),
        ("30/x", {}),
        ("-3/m", {}),
        ("3.5/m", {}),
        (" 30/m", {}),
        ("30/m\n", {}),
        ("٣/m", {}),
        ("9" * 5000 + "/s", {}),
        (30, {}),
        (None, {}),
        ((), {}),
        (("30/m", "60/m"), {}),
        (("30/m", 7), {}),
        ("30/m", {"burst": 0}),
        ("30/m", {"burst": 1.5}),
        ("30/m", {"burst": True}),
        ("30/m", {"cost": 0}),
        ("30/m", {"cost": -1}),
        ("30/m", {"cost": float("nan")}),
        ("30/m", {"cost": float("inf")}),
        ("30/m", {"cost": "1"}),
        ("1/d", {"cost": 10**5}),
    ],
)
def test_wrong_rate_is_refused(rate: Any, options: dict[str, Any]) -> None:
    with pytest.raises(LockUsageError):
        Rate.parse(rate, **options)
