"""How a surface reaches the locks: those of a Celery app, their server, and its clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from celery_locks.core.locks import Locks
from celery_locks.errors import LockUsageError
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.store.commands.admin import AdminCommands

__all__ = [
    "ActiveReport",
    "Location",
    "Locks",
    "check_settings",
    "location",
    "locks_of",
    "open_locks",
    "server_time",
]


@dataclass(frozen=True, slots=True)
class Location:
    """Where the locks are stored, without any credential."""

    server: str
    db: int
    prefix: str


def location(locks: Locks) -> Location:
    return Location(*locks.server, locks.commands.prefix)


def open_locks(source: Any) -> tuple[Locks, Any]:
    """Return the locks of a Celery app and the app; for a ``Locks``, itself and None."""
    if isinstance(source, Locks):
        return source, None
    if not hasattr(source, "conf") or not hasattr(source, "tasks"):
        raise LockUsageError(
            f"create_app needs a Celery app or Locks, not a {type(source).__name__}"
        )
    return Locks.from_app(source), source


def check_settings(app: Any) -> None:
    """Raise if the app's settings name no usable lock server; nothing is sent to it."""
    Locks.from_app(app).close()


def server_time(locks: Locks) -> float:
    """Return the lock server's clock, or this machine's if the server does not report it."""
    server = locks.perform(AdminCommands(locks.commands).server(locks.commands.roots[0]))
    microseconds = server.get("server_time_usec")
    return int(microseconds) / 1e6 if microseconds else time.time()
