"""The connection to Celery: signals, remote control commands, and two wrapped methods.

They are ``Task.bind`` and ``Celery.send_task``.

Importing the modules of this package connects nothing. ``from celery_locks import LockedTask``, the
first subclass of it, or the first ``@single_instance`` or ``leader`` of a process calls
:func:`install`, which connects everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import signals

logger = logging.getLogger("celery_locks")

Callback = Callable[[], object]

_is_installed = False


def install() -> None:
    """Connect everything to Celery, once in a process."""
    global _is_installed
    if _is_installed:
        return
    # Here: these modules import LockedTask or this module.
    from celery_locks.core.owners import set_task_lookup
    from celery_locks.integration import celery_events, control, decorator, waking
    from celery_locks.integration import current_execution as current
    from celery_locks.integration import leader as leaders
    from celery_locks.integration import startup_log as startup
    from celery_locks.integration.internals import on_bind, on_send_task
    from celery_locks.integration.revoked import release_on_revoke
    from celery_locks.integration.send_task import publish_by_name

    on_bind(decorator.lock_if_marked)
    on_send_task(publish_by_name)
    set_task_lookup(current.current_task_holder)
    signals.worker_init.connect(current.find_plain_tasks)
    signals.worker_process_init.connect(current.find_plain_tasks)
    signals.worker_init.connect(control.register)
    signals.worker_init.connect(celery_events.send_events_of_worker)
    signals.worker_init.connect(release_on_revoke)
    signals.worker_ready.connect(startup.log_locks)
    signals.worker_ready.connect(leaders.start_leaders)
    signals.worker_shutdown.connect(leaders.stop_leaders)
    signals.worker_ready.connect(waking.start_polling)
    signals.worker_shutdown.connect(waking.stop_polling)
    signals.task_revoked.connect(_release_revoked)
    at_end_of_child(_finish_releases)
    _is_installed = True


def at_end_of_child(callback: Callback) -> None:
    """Call it when a child of the prefork pool exits; ``atexit`` does not work there."""
    _connect(signals.worker_process_shutdown, callback)


def when_worker_is_ready(callback: Callback) -> None:
    """Call it in a worker's main process, once it takes tasks; never in other processes."""
    _connect(signals.worker_ready, callback)


def _connect(signal: Any, callback: Callback) -> None:
    def call(**_: Any) -> None:
        try:
            callback()
        except Exception:  # Celery would only log it too, as an error of a signal
            logger.exception("%r failed in a worker", callback)

    signal.connect(call, weak=False, dispatch_uid=f"celery_locks.{callback!r}")


def _finish_releases() -> None:
    """Wait for pending releases: those of a child that exits are lost with it."""
    from celery_locks.core.renewer import renewer

    renewer.wait_idle(3.0)


def _release_revoked(
    sender: Any = None, request: Any = None, terminated: bool = False, **_: Any
) -> None:
    """Release the reservation of a message that was revoked or has expired."""
    from celery_locks.integration.reservation import Reservation

    if not terminated:
        Reservation.of(request, sender.app).release()
