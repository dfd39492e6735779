"""Stop the run that holds a lock, for a new task that takes its place (``cancel_running``).

The new task is parked, in place of one that waits already, and its record on the lock server names
the run that it displaces. That run is asked to stop when it has run for ``displace_after`` seconds;
if it does not end within ``cancel_grace`` seconds, a worker terminates it. The record is what
others go by: the run that ends finds in it who supersedes it, and any worker that looks after
parked messages finds in it what to stop and to terminate.

A run that was started by ``max_displacements`` displacements in a row is not displaced: under a
steady stream of new tasks some would else never end. All times are those of the lock server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.options import LockOptions
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import Conflict, Holder, LockInfo

# In the ``extra`` of a run: the number of displacements in a row that led to it.
DISPLACEMENTS = "displacements"
# In that of a parked message: the task ids of the runs that it displaces, from when on, the grace.
DISPLACES = "displaces"
# In the command to the workers that terminates runs: the task that takes their place.
SUPERSEDED_BY = "superseded_by"

_NOTHING: Mapping[str, Any] = {}
# Somewhat less than the time for which the server recognises a repeated request, and logs it once
# (saved_replies.lua).
_RECOGNISED = 8.0
# A worker looks at a lock every five to seven seconds, so there is a look between the signals.
_BETWEEN_SIGNALS = 8.0


class Displacement(NamedTuple):
    """What a new task displaces, and what to write down with its message.

    ``runs`` are those to ask at once; the others are asked when their time has come.
    """

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
    asked_at = max(conflict.as_of, *(it.acquired_at + options.displace_after for it in runs))
    extra = {DISPLACES: [ids, asked_at, options.cancel_grace]}
    return Displacement(runs if asked_at <= conflict.as_of else (), count, extra)


def _count_of(holder: Holder) -> int:
    count = holder.extra.get(DISPLACEMENTS, 0)
    return count if isinstance(count, int) else 0


def ask_to_stop(
    locks: Locks, name: str, runs: Sequence[Holder], task_id: str, *, is_logged: bool = True
) -> None:
    """Ask the runs to stop; the history says for which task.

    Without a reply a worker that looks at the lock asks again.
    """
    by, why = f"task {task_id}" if is_logged else "", "it supersedes this run"
    for run in runs:
        with suppress(LockUnavailable):
            request_id = f"{task_id}:{run.token}"
            locks.perform(locks.commands.stop(name, run.token, by, why, request_id=request_id))


def find_superseding(locks: Locks, name: str, task_id: str | None) -> str:
    """Return the id of the parked task that displaces a run; "" if there is none."""
    info = locks.perform(locks.commands.info(name))
    found = (it.by for it in _displacements(info) if it.waited >= 0 and task_id in it.ids)
    return next(found, "")


def stop_displaced(app: Any, locks: Locks, names: Sequence[str]) -> None:
    """Ask runs of these locks to stop whose time has come; terminate those that did not.

    With SIGTERM, after which the task can still clean up, and after as long again with SIGKILL;
    a short grace is extended here, so that a look in between sends SIGTERM. Only a prefork pool can
    terminate a task.
    """
    commands: LockCommands = locks.commands
    for name in names:
        info = locks.perform(commands.info(name))
        for each in _displacements(info):
            runs = [it for it in info.holders if not it.is_queued and it.task_id in each.ids]
            if not runs or not each.by or each.waited < 0:
                continue
            if each.waited < each.grace:
                ask_to_stop(locks, name, runs, each.by, is_logged=each.waited < _RECOGNISED)
                continue
            is_last = each.waited >= each.grace + max(each.grace, _BETWEEN_SIGNALS)
            _terminate(app, runs, "SIGKILL" if is_last else "SIGTERM", each.by)


def _terminate(app: Any, runs: Sequence[Holder], signal: str, superseded_by: str) -> None:
    """Let their workers terminate these runs; the results say which task supersedes them.

    All workers are told (``revoked.py``), so that none runs a redelivered copy.
    """
    arguments = {
        "task_id": [run.task_id for run in runs],
        "terminate": True,
        "signal": signal,
        SUPERSEDED_BY: superseded_by,
    }
    app.control.broadcast("revoke", arguments=arguments)


class _Written(NamedTuple):
    """The task, the runs that it displaces, since when they are asked to stop, and the grace."""

    by: str
    ids: list[str]
    waited: float
    grace: float


def _displacements(info: LockInfo | None) -> list[_Written]:
    found: list[_Written] = []
    if info is None:
        return found
    for waiter in info.waiters:
        written = waiter.extra.get(DISPLACES)
        if isinstance(written, list) and len(written) == 3 and isinstance(written[0], list):
            ids, asked_at, grace = written
            found.append(_Written(waiter.task_id or "", ids, info.as_of - asked_at, grace))
    return found
