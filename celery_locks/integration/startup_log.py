"""Log lines about locks when a worker starts.

One line names the lock server and counts the locked tasks. Then a thread asks the server once,
without delaying the start, so that a wrong password or permission is in the log as an error before
the first task needs its lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from celery_locks.errors import LockError, LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.options import LockOptions
from celery_locks.store.commands.admin import AdminCommands

logger = logging.getLogger("celery_locks")

# Seconds; a server that does not reply in this time is reported as unavailable.
_PATIENCE = 1.0


def log_locks(sender: Any = None, **_: Any) -> None:
    """Log the locks of a worker that is ready; ``sender`` is its consumer."""
    app = sender.app
    tasks = [task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")]
    if not any(hasattr(task, "lock_options") for task in tasks):
        return
    try:
        locks = locks_of(app)
    except LockError as error:
        logger.error("locks: no task can take its lock: %s", error)
        return
    options = [found for task in tasks if (found := _options_of(task))]
    logger.info("locks: %s, %s", locks.server_url, _summary(options, len(tasks)))
    threading.Thread(
        target=_check_server, args=(locks,), name="celery-locks-startup", daemon=True
    ).start()


def _options_of(task: Any) -> LockOptions | None:
    """Return the lock options of a task; None if it takes no lock."""
    if not hasattr(task, "lock_options"):
        return None
    try:
        options: LockOptions = task.lock_options()
    except LockUsageError as error:
        logger.error("locks: task %s cannot take its lock: %s", task.name, error)
        return None
    return options if options.enabled else None


def _summary(options: Iterable[LockOptions], tasks: int) -> str:
    found = list(options)
    ttls = sorted({each.ttl for each in found}) or [0.0]
    ttl = f"{ttls[0]:g}" if len(ttls) == 1 else f"{ttls[0]:g} to {ttls[-1]:g}"
    by_id = sum(each.key is None for each in found)
    counts = [(len(found) - by_id, "by key"), (by_id, "by task id")]
    parts = ", ".join(f"{count} {kind}" for count, kind in counts if count)
    are = "is" if len(found) == 1 else "are"
    noun = "task" if tasks == 1 else "tasks"
    return f"ttl {ttl} s; {len(found)} of {tasks} {noun} {are} locked ({parts or 'none'})"


def _check_server(locks: AppLocks) -> None:
    call = AdminCommands(locks.commands).server(locks.commands.roots[0])
    call.budget = _PATIENCE
    try:
        locks.perform(call)
    except LockUnavailable as error:
        if error.is_permanent:
            logger.error("locks: no task can take its lock: %s", error)
        else:
            logger.warning("locks: tasks wait for their lock server: %s", error)
