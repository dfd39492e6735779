"""The metrics, as the collector describes them to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from celery_locks.metrics.collector import PREFIX, LocksCollector
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS
from celery_locks_site.markdown import code, codes, table, text


def families() -> list[Any]:
    """Return all metrics without their values; this needs no server."""
    return list(LocksCollector.describe(cast(LocksCollector, None)))


def names() -> list[str]:
    """Return the names as they are queried: a counter ends in `_total`."""
    return [it.name + ("_total" if it.type == "counter" else "") for it in families()]


def page() -> str:
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    counters = [it for it in families() if it.type == "counter"]
    rows = [[code(f"{it.name}_total"), text(it.documentation), _label(it.name)] for it in counters]
    yield "## Counters\n\n" + table(["counter", "value", "label beside `task`"], rows)
    rows = [
        [code(it.name), text(it.documentation), _buckets(it.name)]
        for it in families()
        if it.type == "histogram"
    ]
    yield "## Histograms\n\n" + table(["histogram", "value", "buckets, in seconds"], rows)
    rows = [[code(it.name), text(it.documentation)] for it in families() if it.type == "gauge"]
    yield "## Gauges\n\n" + table(["gauge", "value"], rows)


def _label(name: str) -> str:
    counter = COUNTERS[name.removeprefix(PREFIX)]
    return f"{code(counter.label)}: {codes(counter.values)}" if counter.label else "–"


def _buckets(name: str) -> str:
    bounds: Iterable[float] = HISTOGRAMS[name.removeprefix(PREFIX).removesuffix("_seconds")].bounds
    return ", ".join(f"{bound:g}" for bound in bounds)
