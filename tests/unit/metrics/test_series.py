"""Which events are counted, under which series and labels."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.admin.metric_sums import MetricField
from celery_locks.core.lease import NOT_ON_SERVER
from celery_locks.events import LockEvent
from celery_locks.metrics.series import COUNTERS, counted


def event(kind: Any, token: str = "abc", **detail: Any) -> LockEvent:
    return LockEvent(kind, "invoice:42", token, 7, detail=detail)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (event("acquired", task="t", waited=0.03), MetricField("acquired", "t")),
        (event("acquired", task="t", waited=0.03), MetricField("wait", "t", "0.05")),
        (event("acquired", task="t", waited=0.05), MetricField("wait", "t", "0.05")),
        (event("acquired", waited=9e9), MetricField("wait", "", "+Inf")),
        (event("acquired", "qjob", task="t", waited=0), MetricField("enqueued", "t")),
        (event("released", task="t", held_for=2.0), MetricField("hold", "t", "5")),
        (event("conflict", task="t", policy="skip"), MetricField("conflicts", "t", "skip")),
        (event("lost", task="t", why=NOT_ON_SERVER), MetricField("lost", "t", "gone")),
        (event("lost", task="t", why="x", revoked=True), MetricField("lost", "t", "revoked")),
        (event("lost", why="it could not be renewed: refused"), MetricField("lost", "", "late")),
        (event("duplicate", task="t", decision="raise"), MetricField("duplicates", "t", "raise")),
        (event("suspended", task="t"), MetricField("renew_failures", "t")),
        (event("unavailable", task="t"), MetricField("unavailable", "t")),
        (event("freed", task="t"), MetricField("freed", "t")),
        (event("parked", task="t"), MetricField("parked", "t")),
        (event("woken", "kjob", task="t", is_repeat=True), MetricField("woken", "t")),
        (event("woken", "kjob", task="t", is_repeat=True), MetricField("wake_repeats", "t")),
    ],
)
def test_event_is_counted(values: LockEvent, expected: MetricField) -> None:
    assert dict(counted(values))[expected] == 1


def test_renewals_and_messages_conflicts_are_not_counted() -> None:
    """A renewal is no news; what a publisher finds busy is a duplicate, counted as such."""
    assert list(counted(event("renewed"))) == []
    assert list(counted(event("conflict", "qjob"))) == []


def test_first_publication_of_a_parked_task_is_no_repeat() -> None:
    assert dict(counted(event("woken", "kjob", task="t", is_repeat=False))) == {
        MetricField("woken", "t"): 1
    }


def test_lock_names_are_no_labels(locks: Locks) -> None:
    """There are as many as there are invoices: Prometheus would drown in them."""
    for kind in (*COUNTERS, "released", "conflict", "suspended"):
        for field, _ in counted(event(kind, task="t")):
            assert "invoice" not in "".join(field)


def test_seconds_are_summed_up() -> None:
    values = dict(counted(event("released", task="t", held_for=1.5)))
    assert values[MetricField("hold_us", "t")] == 1_500_000
