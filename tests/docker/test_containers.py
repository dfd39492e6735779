"""A worker in a container, on Redis and on RabbitMQ: the locks are where the settings say.

Run by ``make test-docker`` wherever a Docker engine is.
"""

import time
from typing import Any

import pytest
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup

from tests.docker.tasks import bill, book, kill

pytestmark = pytest.mark.docker


def test_container_skips_a_busy_lock(celery_setup: CeleryTestSetup) -> None:
    results = [bill.delay(1, seconds=3.0) for _ in range(3)]
    values: list[Any] = [result.get(timeout=RESULT_TIMEOUT) for result in results]
    assert values.count("billed") == 1
    skipped = [value for value in values if value != "billed"]
    assert {value["lock"] for value in skipped} == {"invoice:1"}
    assert bill.delay(1).get(timeout=RESULT_TIMEOUT) == "billed"


def test_container_stands_in_line(celery_setup: CeleryTestSetup) -> None:
    results = [book.delay("ann", seconds=0.5) for _ in range(3)]
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == ["booked"] * 3


def test_container_frees_what_a_killed_child_held(celery_setup: CeleryTestSetup) -> None:
    """Long before the ttl of 30 s."""
    bill.delay(2, seconds=120)
    skip: Any = "billed"
    ends = time.monotonic() + 20
    while skip == "billed" and time.monotonic() < ends:
        skip = bill.delay(2).get(timeout=RESULT_TIMEOUT)
    kill.delay(skip["holder"]["pid"]).get(timeout=RESULT_TIMEOUT)
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if bill.delay(2).get(timeout=RESULT_TIMEOUT) == "billed":
            return
    pytest.fail("the lock did not come back within 10 s")
