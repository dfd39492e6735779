"""Moments in the life of a worker, for surfaces that may not know Celery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import signals

logger = logging.getLogger("celery_locks")

Callback = Callable[[], object]


def at_end_of_child(callback: Callback) -> None:
    """When a child of the prefork pool exits, recycled or with its worker: no ``atexit`` there."""
    _connect(signals.worker_process_shutdown, callback)


def when_worker_is_ready(callback: Callback) -> None:
    """In a worker's main process, once it takes tasks; in other processes never."""
    _connect(signals.worker_ready, callback)


def _connect(signal: Any, callback: Callback) -> None:
    def call(**_: Any) -> None:
        try:
            callback()
        except Exception:  # Celery would only log it too, as an error of a signal
            logger.exception("%r failed in a worker", callback)

    signal.connect(call, weak=False, dispatch_uid=f"celery_locks.{callback!r}")
