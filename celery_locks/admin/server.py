"""What surfaces ask about the lock server and the app, besides the locks themselves."""

from __future__ import annotations

import time
from typing import Any

from celery_locks.core.locks import Locks
from celery_locks.integration.app import locks_of
from celery_locks.integration.task import LockedTask
from celery_locks.store.commands.admin import AdminCommands


def server_time(locks: Locks) -> float:
    """Return the lock server's time; that of this machine if the server does not report it."""
    info = locks.perform(AdminCommands(locks.commands).server(locks.commands.roots[0]))
    micros = info.get("server_time_usec")
    return int(micros) / 1e6 if micros else time.time()


def locks_of_app(app: Any) -> Locks:
    """Return the locks that the app's own tasks use, the same object each time."""
    return locks_of(app)


def locked_tasks(app: Any) -> list[str]:
    """Return the names of the app's tasks that have a lock, if their modules are imported."""
    return [task.name for task in app.tasks.values() if isinstance(task, LockedTask)]
