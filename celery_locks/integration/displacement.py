"""Stop the run that holds a lock, for a new task that takes its place (``cancel_running``).

The new task is parked, in place of one that waits already, and its record on the lock server names
the run that it displaces. That run is asked to stop; if it does not end within ``cancel_grace``
seconds, a worker terminates it. The record is what others go by: the run that ends finds in it who
supersedes it, and any worker that looks after parked messages finds in it what to terminate.

A run that was started by ``max_displacements`` displacements in a row is not displaced: under a
steady stream of new tasks some would else never end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUnavailable
from celery_locks.options import LockOptions
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import Conflict, Holder, LockInfo

# In the ``extra`` of a run: the number of displacements in a row that led to it.
DISPLACEMENTS = "displacements"
# In that of a parked message: the task ids of the runs that it displaces, since when, the grace.
DISPLACES = "displaces"


_NOTHING: Mapping[str, Any] = {}


class Displacement(NamedTuple):
    """The runs that a new task displaces, and what to write down with its message."""

    runs: tuple[Holder, ...] = ()
    number: int = 0
    extra: Mapping[str, Any] = _NOTHING


def plan_displacement(options: LockOptions, conflict: Conflict) -> Displacement:
    """Return which runs to displace: none if the policy is another or if there were too many."""
    if not options.cancels:
        return Displacement()
    runs = tuple(it for it in conflict.holders if it.task_id and not it.is_queued)
    count = 1 + max((_count_of(it) for it in runs), default=0)
    if not runs or count > options.max_displacements:
        return Displacement()
    ids = [it.task_id for it in runs]
    return Displacement(runs, count, {DISPLACES: [ids, time.time(), options.cancel_grace]})


def _count_of(holder: Holder) -> int:
    count = holder.extra.get(DISPLACEMENTS, 0)
    return count if isinstance(count, int) else 0


def ask_to_stop(locks: Locks, name: str, runs: Sequence[Holder], task_id: str) -> None:
    """Ask the runs to stop; the history says for which task.

    Without a reply they are terminated after their grace.
    """
    by, why = f"task {task_id}", "it supersedes this run"
    for run in runs:
        with suppress(LockUnavailable):
            locks.perform(locks.commands.stop(name, run.token, by, why, request_id=new_token()))


def find_superseding(locks: Locks, name: str, task_id: str | None) -> str:
    """Return the id of the parked task that displaces a run; "" if there is none."""
    info = locks.perform(locks.commands.info(name))
    return next((by for by, ids, _, _ in _displacements(info) if task_id in ids), "")


def terminate_late(app: Any, locks: Locks, names: Sequence[str]) -> None:
    """Terminate runs of these locks that did not stop within their grace; prefork pools only.

    With SIGTERM, after which the task can still clean up, and after as long again with SIGKILL.
    """
    commands: LockCommands = locks.commands
    for name in names:
        info = locks.perform(commands.info(name))
        for by, ids, since, grace in _displacements(info):
            held = [it.task_id for it in info.holders if not it.is_queued] if info else []
            late = [task_id for task_id in ids if task_id in held]
            waited = time.time() - since
            if late and by and waited >= grace:
                number = "SIGTERM" if waited < 2 * grace else "SIGKILL"
                app.control.revoke(late, terminate=True, signal=number)


def _displacements(info: LockInfo | None) -> list[tuple[str, list[str], float, float]]:
    """Return the task, the runs that it displaces, since when and with which grace."""
    found = []
    for waiter in info.waiters if info else ():
        written = waiter.extra.get(DISPLACES)
        if isinstance(written, list) and len(written) == 3 and isinstance(written[0], list):
            found.append((waiter.task_id or "", *written))
    return found
