"""Rates in sentences, and the delay of one task."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from celery_locks import Holder, Locks, RateInfo, admin
from celery_locks.core.requests import new_token
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import AcquireExtras, RateCheck
from celery_locks.types import DelayedCaller, LockSpec


@pytest.fixture
def locks() -> Iterator[Locks]:
    locks = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield locks
    locks.close()


def delay(locks: Locks, rate: str, *task_ids: str) -> None:
    locks.throttle(rate, "1/h")
    extras = AcquireExtras(rates=(RateCheck(rate, Rate.parse("1/h").text, 1e6),))
    for task_id in task_ids:
        call = locks.commands.acquire(LockSpec("l"), new_token(), Holder(task_id=task_id), extras)
        locks.perform(call)


def test_list_is_sorted_and_has_only_rates_that_delay(locks: Locks) -> None:
    delay(locks, "b", "1")
    delay(locks, "a", "1", "2")
    locks.throttle("idle", "1/h")
    assert [(it.name, it.delayed) for it in admin.list_rates(locks)] == [("a", 2), ("b", 1)]


def test_rate_is_described_in_a_line() -> None:
    info = RateInfo("api", ("30/m", "9/h"), 20.0, 60.0, 2, (DelayedCaller("1", 4.0),))
    assert admin.describe_rate(info) == (
        "Rate 'api' (30/m and 9/h): 2 delayed, the next starts in 4 s, a new caller in 20 s; "
        "pushed back for 1 min 0 s."
    )


def test_why_says_when_a_delayed_task_starts(locks: Locks) -> None:
    delay(locks, "api", "first", "second")
    [sentence] = admin.why(locks, "second").sentences
    assert sentence.startswith("Task second is delayed by rate 'api' (1/h): it starts in ")
    assert sentence.endswith(", 1 ahead of it.")
    assert not admin.why(locks, "third").is_known
