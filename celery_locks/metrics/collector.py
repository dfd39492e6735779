"""The collector for ``prometheus_client``: reads the sums and counts the locks at each scrape.

A scrape of 100,000 locks reads them page by page; the server counts each page in a millisecond or
two, and sends only the numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from celery_locks.admin import locked_tasks
from celery_locks.admin.connect import Locks
from celery_locks.admin.metric_sums import Counts, MetricField, Tally, read_counts, read_tallies
from celery_locks.errors import LockError
from celery_locks.extras import missing_extra
from celery_locks.loopback import is_loopback, is_loopback_header
from celery_locks.metrics import locks_of
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS, INFINITY, sum_of

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("metrics", error) from error

logger = logging.getLogger("celery_locks")

PREFIX = "celery_locks_"


class Gauge(NamedTuple):
    """A gauge by task; its field in ``Tally`` is its key in ``_GAUGES``."""

    name: str
    help: str


_GAUGES = {
    "held": Gauge("held", "Number of holders that have a lock now and are working."),
    "stale": Gauge("stale", "Number of holders that have not renewed for half of their ttl."),
    "oldest": Gauge("oldest_hold_seconds", "Age of the oldest lock that is held now, in seconds."),
    "queued": Gauge("queued", "Number of messages in the queue that already have their lock."),
    "waiting": Gauge("waiting", "Number of callers that wait for a lock now."),
    "parked": Gauge("parked_messages", "Number of messages that are parked for a lock now."),
    "oldest_parked": Gauge(
        "oldest_parked_seconds", "Seconds for which the oldest parked message waits now."
    ),
}
_PAUSED = "Number of locks, of patterns of lock names and of rates that operators have paused."
_UP = "1 if the lock server answered this scrape, else 0."


class LocksCollector(Collector):
    """The collector to register, once, in any process; it has no state.

    ``where`` is as in ``install``. It knows the locked tasks of an app, so that each has its
    counters, with 0, from the start: ``increase()`` sees only what follows a first value.
    """

    def __init__(self, where: Any) -> None:
        self._locks = locks_of(where)
        self._app = None if isinstance(where, Locks | str) else where

    def collect(self) -> Iterator[Metric]:
        try:
            counts, tallies = read_counts(self._locks), read_tallies(self._locks)
        except LockError:
            yield GaugeMetricFamily(f"{PREFIX}up", _UP, 0)
            return
        yield GaugeMetricFamily(f"{PREFIX}up", _UP, 1)
        yield from families(counts, tallies, locked_tasks(self._app) if self._app else ())

    def describe(self) -> Iterator[Metric]:
        """Return the names of the metrics without a call to the server; called at registration."""
        yield GaugeMetricFamily(f"{PREFIX}up", _UP)
        yield from families({}, {})


def exposition(where: Any) -> str:
    """Return what Prometheus would read now; ``where`` as in ``install``."""
    registry = CollectorRegistry()
    registry.register(LocksCollector(where))
    return generate_latest(registry).decode()


def serve(where: Any, port: int, host: str = "127.0.0.1") -> tuple[Any, Any]:
    """Serve the metrics in a thread of this process; ``where`` as in ``install``.

    Returns the server and its thread; ``server.shutdown()`` ends it. On a loopback address only
    requests with a loopback Host header are answered.
    """
    registry = CollectorRegistry()
    registry.register(LocksCollector(where))
    server, thread = start_http_server(port, host, registry)
    if is_loopback(host):
        server.set_app(_for_this_machine(server.get_app()))
    return server, thread


def _for_this_machine(app: Any) -> Any:
    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if is_loopback_header(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Served to this machine only: ask for it as localhost or 127.0.0.1.\n"]

    return answer


def serve_if_free(where: Any, port: int, host: str) -> None:
    """Serve, unless another worker on this machine has the port: it serves the same metrics."""
    try:
        serve(where, port, host)
    except OSError as error:
        logger.warning("lock metrics are not served on %s:%d: %s", host, port, error)


def families(
    counts: Counts, tallies: Mapping[str, Tally], tasks: Iterable[str] = ()
) -> Iterator[Metric]:
    """Build all metrics except ``up``, with every counter and gauge for each known task."""
    known = sorted({*tasks, *tallies, *(field.task for field in counts)})
    for series in COUNTERS:
        yield _counter(series, counts, known)
    for series in HISTOGRAMS:
        yield _histogram(series, counts)
    paused = sum(tally.paused for tally in tallies.values())
    yield GaugeMetricFamily(f"{PREFIX}paused", _PAUSED, paused)
    for field, gauge in _GAUGES.items():
        family = GaugeMetricFamily(PREFIX + gauge.name, gauge.help, labels=["task"])
        for task in known:
            family.add_metric([task], getattr(tallies.get(task, Tally()), field))
        yield family


def _counter(series: str, counts: Counts, tasks: Sequence[str]) -> Metric:
    about = COUNTERS[series]
    labels = ["task", about.label] if about.label else ["task"]
    family = CounterMetricFamily(PREFIX + series, about.help, labels=labels)
    amounts = {MetricField(series, task, value): 0 for task in tasks for value in about.values}
    amounts |= {field: amount for field, amount in counts.items() if field.series == series}
    for field, amount in sorted(amounts.items()):
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
            total += counts.get(MetricField(series, task, bound), 0)
            buckets.append((bound, total))
        micros = counts.get(MetricField(sum_of(series), task), 0)
        family.add_metric([task], buckets=buckets, sum_value=micros / 1e6)
    return family
