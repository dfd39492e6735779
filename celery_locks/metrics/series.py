"""What is counted: what each event adds to which series. No I/O.

The labels are the task's name and one of a few values (policy, reason, decision), never the name of
a lock: there are as many of those as there are invoices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, get_args

from celery_locks.admin.metric_sums import MetricField
from celery_locks.core.lease import NOT_ON_SERVER
from celery_locks.events import LockEvent
from celery_locks.options import OnConflict, OnPublish
from celery_locks.rates import OnLimit
from celery_locks.types import RESERVATION_PREFIX


class Counter(NamedTuple):
    """A counter by task, and by one more label with these values if it has one."""

    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)


class Histogram(NamedTuple):
    """A histogram of seconds by task; the last bucket, without a bound, is implied."""

    help: str
    bounds: tuple[float, ...]


COUNTERS = {
    "acquired": Counter("Number of locks that were acquired."),
    "conflicts": Counter(
        "Number of times that a lock was busy when a caller tried to acquire it.",
        "policy",
        get_args(OnConflict),
    ),
    "deadlocks": Counter("Number of waits that were given up because they closed a cycle."),
    "limits_differ": Counter(
        "Number of times that a caller found holders of its lock with another limit than its own."
    ),
    "lost": Counter(
        "Number of locks that were lost while their holder was still working.",
        "reason",
        ("revoked", "gone", "late"),
    ),
    "freed": Counter("Number of locks of killed processes that their worker released."),
    "renew_failures": Counter("Number of times that the renewal of a lock began to fail."),
    "unavailable": Counter("Number of times that the lock server did not answer a request."),
    "unlocked": Counter("Number of tasks that ran or were published without their lock."),
    "skipped": Counter("Number of tasks that did not run because their lock was busy."),
    "requeued": Counter("Number of times that a task was put back into the queue."),
    "parked": Counter("Number of times that a task was parked to wait for its lock."),
    "recovered": Counter("Number of lost messages that were published again (keep_message)."),
    "woken": Counter("Number of times that a parked task was published because it was its turn."),
    "wake_repeats": Counter(
        "Number of times that a parked task was published again, as it was not confirmed in time."
    ),
    "limited": Counter(
        "Number of times that a rate did not let a task start at once.",
        "decision",
        get_args(OnLimit),
    ),
    "already_done": Counter("Number of calls whose work was already done."),
    "enqueued": Counter("Number of messages that acquired their lock when they were published."),
    "duplicates": Counter(
        "Number of calls that were published while the same call was queued or running.",
        "decision",
        get_args(OnPublish),
    ),
}

HISTOGRAMS = {
    "wait": Histogram(
        "Seconds from the request for a lock to its acquisition.",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    ),
    "hold": Histogram(
        "Seconds from the acquisition of a lock to its release.",
        (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400),
    ),
    "delay": Histogram(
        "Seconds by which a rate delayed the start of a task.",
        (0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
    ),
}

# Events that add one to one counter; `counted` has the others.
_PLAIN = {
    "deadlock": "deadlocks",
    "limits_differ": "limits_differ",
    "freed": "freed",
    "suspended": "renew_failures",
    "unavailable": "unavailable",
    "unlocked": "unlocked",
    "skipped": "skipped",
    "requeued": "requeued",
    "parked": "parked",
    "woken": "woken",
    "recovered": "recovered",
    "already_done": "already_done",
}
INFINITY = "+Inf"


def sum_of(series: str) -> str:
    """Return the series with a histogram's sum, in microseconds."""
    return f"{series}_us"


def counted(event: LockEvent) -> Iterator[tuple[MetricField, int]]:
    """Yield what an event adds to which field."""
    task, detail = event.detail.get("task") or "", event.detail
    # A reservation: no task runs yet, and its conflicts are duplicates.
    is_message = event.token.startswith(RESERVATION_PREFIX)
    match event.kind:
        case "acquired" if is_message:
            yield MetricField("enqueued", task), 1
        case "acquired":
            yield MetricField("acquired", task), 1
            yield from _observed("wait", task, detail.get("waited", 0.0))
        case "released" if not is_message:
            yield from _observed("hold", task, detail.get("held_for", 0.0))
        case "conflict" if not is_message:
            yield MetricField("conflicts", task, detail.get("policy", "")), 1
        case "limited":
            yield MetricField("limited", task, detail.get("decision", "")), 1
            if detail.get("decision") == "delay":
                yield from _observed("delay", task, detail.get("pause", 0.0))
        case "lost":
            yield MetricField("lost", task, _reason(event)), 1
        case "duplicate":
            yield MetricField("duplicates", task, detail.get("decision", "")), 1
        case plain if plain in _PLAIN:
            yield MetricField(_PLAIN[plain], task), 1
            if detail.get("is_repeat"):
                yield MetricField("wake_repeats", task), 1


def _observed(series: str, task: str, seconds: float) -> Iterator[tuple[MetricField, int]]:
    bounds = HISTOGRAMS[series].bounds
    index = bisect_left(bounds, seconds)
    bucket = f"{bounds[index]:g}" if index < len(bounds) else INFINITY
    yield MetricField(series, task, bucket), 1
    yield MetricField(sum_of(series), task), max(0, round(seconds * 1e6))


def _reason(event: LockEvent) -> str:
    """Return the label: ``revoked`` by an operator, ``gone`` from the server, or ``late``."""
    if event.detail.get("revoked"):
        return "revoked"
    return "gone" if event.detail.get("why") == NOT_ON_SERVER else "late"
