"""What hangs on Celery's signals, the same for every way in which a task becomes locked.

Connected by each of them: Celery keeps a receiver once.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from celery_locks.core.renewer import renewer
from celery_locks.integration import celery_events as task_events
from celery_locks.integration import control as remote
from celery_locks.integration import lifecycle, startup
from celery_locks.integration.current import look_for_plain_tasks
from celery_locks.integration.reservation import Reservation
from celery_locks.integration.revoked import release_on_revoke


def connect() -> None:
    """Before a worker starts: what it does for locked tasks beyond running them."""
    signals.worker_init.connect(look_for_plain_tasks)
    signals.worker_process_init.connect(look_for_plain_tasks)
    signals.worker_init.connect(remote.register)
    signals.worker_init.connect(task_events.follow_worker)
    signals.worker_init.connect(release_on_revoke)
    signals.worker_ready.connect(startup.log_locks)
    signals.task_revoked.connect(_release_revoked)
    lifecycle.at_end_of_child(_settle)


def _settle() -> None:
    """A child is recycled while the server is away for a moment: what it owes dies with it."""
    renewer.wait_idle(3.0)


def _release_revoked(
    sender: Any = None, request: Any = None, terminated: bool = False, **_: Any
) -> None:
    if not terminated:
        Reservation.of(request, sender.app).release()
