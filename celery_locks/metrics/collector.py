"""The collector for ``prometheus_client``: reads the sums and counts the locks when it is scraped.

A scrape of 100,000 locks walks them page by page, each counted by the server in less than a
millisecond or two; nothing about them is sent but the numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from celery_locks.errors import LockError
from celery_locks.locks import Locks
from celery_locks.metrics import locks_of
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS, INFINITY, sum_of
from celery_locks.store.telemetry_verbs import Counts, Field, Tally, TelemetryVerbs

logger = logging.getLogger("celery_locks")

PREFIX = "celery_locks_"


class Gauge(NamedTuple):
    name: str
    help: str


_GAUGES = {
    "held": Gauge("held", "Holders at work at this moment."),
    "stale": Gauge("stale", "Of these, such as have not renewed for half of their ttl."),
    "oldest": Gauge("oldest_hold_seconds", "How long the one that was first has had its lock."),
    "queued": Gauge("queued", "Messages in the queue that have their lock already."),
    "waiting": Gauge("waiting", "Those that wait in line for a lock."),
}
_UP = "Whether the lock server answered to this scrape."


class LocksCollector(Collector):
    """Register it once, in any process; it has no state of its own."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def collect(self) -> Iterator[Metric]:
        try:
            counts, tally = read_counts(self._locks), read_tally(self._locks)
        except LockError:
            yield GaugeMetricFamily(f"{PREFIX}up", _UP, 0)
            return
        yield GaugeMetricFamily(f"{PREFIX}up", _UP, 1)
        yield from families(counts, tally)

    def describe(self) -> Iterator[Metric]:
        """Asked for when it is registered: the names, without asking the server."""
        yield GaugeMetricFamily(f"{PREFIX}up", _UP)
        yield from families({}, Tally(0, 0, 0.0, 0, 0))


def exposition(locks: Locks) -> str:
    """What Prometheus would read now."""
    registry = CollectorRegistry()
    registry.register(LocksCollector(locks))
    return generate_latest(registry).decode()


def serve(where: Any, port: int, host: str = "127.0.0.1") -> tuple[Any, Any]:
    """Answer to Prometheus in a thread of this process; ``where`` as in ``install``.

    Returns the server and its thread; ``server.shutdown()`` ends it.
    """
    registry = CollectorRegistry()
    registry.register(LocksCollector(locks_of(where)))
    return start_http_server(port, host, registry)


def serve_if_free(where: Any, port: int, host: str) -> None:
    """For workers: the second one on a machine finds the port taken, and the first says it all."""
    try:
        serve(where, port, host)
    except OSError as error:
        logger.warning("lock metrics are not served on %s:%d: %s", host, port, error)


def read_counts(locks: Locks) -> Counts:
    """The sums over all processes."""
    verbs, found, cursor = TelemetryVerbs(locks.verbs), dict[Field, int](), ""
    while cursor != "0":
        page, cursor = locks.perform(verbs.counts(cursor or "0"))
        found |= page
    return found


def read_tally(locks: Locks) -> Tally:
    """The locks of this moment, counted."""
    verbs = TelemetryVerbs(locks.verbs)
    total, cursor = locks.perform(verbs.tally())
    while cursor:
        page, cursor = locks.perform(verbs.tally(cursor))
        total = total + page
    assert isinstance(total, Tally)
    return total


def families(counts: Counts, tally: Tally) -> Iterator[Metric]:
    """Everything but ``up``."""
    for series in COUNTERS:
        yield _counter(series, counts)
    for series in HISTOGRAMS:
        yield _histogram(series, counts)
    for field, gauge in _GAUGES.items():
        yield GaugeMetricFamily(PREFIX + gauge.name, gauge.help, getattr(tally, field))


def _counter(series: str, counts: Counts) -> Metric:
    about = COUNTERS[series]
    labels = ["task", about.label] if about.label else ["task"]
    family = CounterMetricFamily(PREFIX + series, about.help, labels=labels)
    for field, amount in sorted(counts.items()):
        if field.series == series:
            family.add_metric([field.task, field.label][: len(labels)], amount)
    return family


def _histogram(series: str, counts: Counts) -> Metric:
    about = HISTOGRAMS[series]
    name = f"{PREFIX}{series}_seconds"
    family = HistogramMetricFamily(name, about.help, labels=["task"])
    bounds = [*(f"{bound:g}" for bound in about.bounds), INFINITY]
    for task in sorted({field.task for field in counts if field.series == series}):
        total, buckets = 0, []
        for bound in bounds:
            total += counts.get(Field(series, task, bound), 0)
            buckets.append((bound, total))
        micros = counts.get(Field(sum_of(series), task), 0)
        family.add_metric([task], buckets=buckets, sum_value=micros / 1e6)
    return family
