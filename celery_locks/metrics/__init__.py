"""Prometheus metrics: counted in every process, summed by the lock server, scraped anywhere.

    from celery_locks import metrics

    metrics.install(app)               # in the app's module: every process counts
    metrics.install(app, port=9187)    # and the worker's main process serves Prometheus

Instead of the port, to serve all workers from one place: ``celery -A proj locks metrics``,
``serve(app, port)`` in a process of yours, or, if it serves metrics already,
``prometheus_client.REGISTRY.register(LocksCollector(app))``. No directory for multiprocess mode is
needed. A Prometheus on another machine needs ``host="0.0.0.0"``.

The counts are of the whole prefix, not of one worker: every collector returns the same. Scrape one
of them, or use ``max`` instead of ``sum`` over several.

``recorder.py``: counts events and sends the counts. ``series.py``: what is counted.
``collector.py``: how it is exposed; only this needs ``prometheus_client``.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_locks import events
from celery_locks.admin.connect import Locks
from celery_locks.forking import run_after_fork
from celery_locks.integration import signals
from celery_locks.metrics.recorder import Recorder

if TYPE_CHECKING:
    from celery_locks.metrics.collector import LocksCollector, serve

_recorder: Recorder | None = None
_unsubscribe: Callable[[], None] | None = None


def install(where: Any, *, port: int | None = None, host: str = "127.0.0.1") -> Callable[[], None]:
    """Count every lock event of this process; ``where`` is a Celery app, ``Locks`` or a URL.

    With ``port`` a worker's main process also serves the metrics of the whole prefix there.
    A second call replaces the first. The returned function uninstalls it.
    """
    global _recorder, _unsubscribe
    uninstall()
    _recorder = Recorder(partial(locks_of, where))
    _unsubscribe = events.subscribe(_recorder)
    signals.at_end_of_child(_send_rest)
    if port is not None:
        # Import now, so that a missing prometheus_client fails here, not when the worker is ready.
        from celery_locks.metrics import collector

        signals.when_worker_is_ready(partial(collector.serve_if_free, where, port, host))
    return uninstall


def uninstall() -> None:
    """Send the counts and stop counting; a port that is served stays open."""
    global _recorder, _unsubscribe
    if _recorder and _unsubscribe:
        _unsubscribe()
        _recorder.close()
    _recorder = _unsubscribe = None


def locks_of(where: Any) -> Locks:
    """Return the locks of an app, of a URL, or ``Locks`` itself."""
    if isinstance(where, Locks):
        return where
    return Locks.from_url(where) if isinstance(where, str) else Locks.from_app(where)


def _send_rest() -> None:
    if _recorder:
        _recorder.wait_idle()


def _after_fork() -> None:
    if _recorder:
        _recorder.after_fork()


atexit.register(_send_rest)
run_after_fork(_after_fork, "surfaces")


def __getattr__(name: str) -> Any:
    if name not in ("LocksCollector", "serve"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from celery_locks.metrics import collector

    return getattr(collector, name)


__all__ = ["LocksCollector", "install", "locks_of", "serve", "uninstall"]
