"""Parked messages as operators see them: their position in line, and their removal.

A task with ``on_conflict="park"`` whose lock is busy waits as a message on the lock server. The
list, ``info`` and ``why`` show it as a waiter of its lock (``Holder.is_parked``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_locks.admin.actions import current_operator
from celery_locks.admin.durations import is_at_work
from celery_locks.admin.humanize import (
    format_about,
    format_count,
    format_duration,
    format_position,
)
from celery_locks.admin.liveness import Detail
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.revoked_results import mark_purged
from celery_locks.store.commands.locks import CALL_LIMIT, reservation_token
from celery_locks.store.commands.parking import ParkCommands, Purge, PurgedMessage
from celery_locks.validation import check_name

NO_APP = "no Celery app is known here, so the results of these tasks are not marked as revoked"


@dataclass(frozen=True, slots=True)
class Purged:
    """The messages that were removed.

    ``unmarked`` says why the results of some are not marked as revoked; "" if all are. If the
    server stops answering, ``trouble`` says so, and more messages may have been removed.
    """

    name: str
    messages: tuple[PurgedMessage, ...] = ()
    unmarked: str = ""
    trouble: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe fields, without the messages themselves: they contain arguments."""
        return {
            "name": self.name,
            "purged": [message.holder.as_dict() for message in self.messages],
            "unmarked": self.unmarked,
            "trouble": self.trouble,
        }


def purge(
    locks: Locks,
    name: str,
    *,
    reason: str,
    by: str = "",
    task_id: str | None = None,
    app: Any = None,
) -> Purged:
    """Remove the parked messages of a lock, or that of one task: these tasks never run.

    Messages that are parked meanwhile stay, and so does a message that was woken. With an ``app``
    the results of the tasks are REVOKED. The history has who removed them, and why.
    """
    check_name(name)
    if not reason.strip():
        raise LockUsageError("a purge needs a reason, for those who miss the tasks")
    by = by or current_operator()
    messages: list[PurgedMessage] = []
    unmarked = "" if app is not None else NO_APP
    try:
        for batch in _batches(locks, name, by, reason, task_id):
            messages += batch
            if app is not None and not unmarked:
                texts = [it.message for it in batch if it.message]
                unmarked = mark_purged(app, texts, f"purged by {by}: {reason}")
    except LockUnavailable as error:
        if not messages:
            raise
        return Purged(name, tuple(messages), unmarked, str(error))
    return Purged(name, tuple(messages), unmarked if messages else "")


def _batches(
    locks: Locks, name: str, by: str, why: str, task_id: str | None
) -> Iterator[list[PurgedMessage]]:
    commands, cursor, until = ParkCommands(locks.commands), "", ""
    token = "" if task_id is None else reservation_token(task_id, parked=True)
    while True:
        call = commands.purge(
            name, token, by, why, cursor=cursor, until=until, request_id=new_token()
        )
        batch: Purge = locks.perform(call)
        yield batch.messages
        cursor, until = batch.cursor, batch.until
        if not cursor:
            return


def find_parked(locks: Locks, task_id: str) -> tuple[str, int] | None:
    """Return the lock for which a task is parked, and its position; None if it is not parked."""
    token = reservation_token(task_id, parked=True)
    for root in locks.commands.roots:
        found = locks.perform(locks.commands.locate(root, [token], CALL_LIMIT))
        if token in found:
            name = found[token][0]
            position = locks.perform(ParkCommands(locks.commands).position(name, token))
            if position is not None:
                return name, position
    return None


def about_position(detail: Detail, task: str | None, task_id: str, position: int) -> str:
    """Say the position of a parked task in line, and when its turn should come."""
    lock = detail.lock
    in_line = f"{format_position(position)} in line of {max(position, lock.waiting)}"
    says = f"Task {task_id} is parked for lock {lock.name!r}: {in_line}"
    if lock.pause:
        return f"{says}. Nothing is woken while the lock is paused."
    seconds = starts_in(detail, task, position)
    if seconds is None:
        return f"{says}. How long a hold usually takes is not known yet."
    usual = detail.usual_of[task or ""]
    return f"{says}, {format_about(seconds)} by its usual hold ({_holds(usual.holds)})."


def about_parked(detail: Detail) -> Iterator[str]:
    """Say how many messages are parked for a lock, for how long, and when the next would start."""
    lock = detail.lock
    if not lock.parked:
        return
    waits = "waits" if lock.parked == 1 else "wait"
    since = ""
    if lock.oldest_parked is not None:
        since = f", the oldest for {format_duration(lock.as_of - lock.oldest_parked)}"
    yield f"{format_count(lock.parked, 'parked message')} {waits} on the lock server{since}."
    first = next((waiter for waiter in lock.waiters if waiter.is_parked), None)
    seconds = starts_in(detail, first and first.task, lock.waiting + 1)
    if seconds is not None:
        about = format_about(seconds)
        yield f"A message that is parked now starts in {about} by the usual hold."


def starts_in(detail: Detail, task: str | None, position: int) -> float | None:
    """Return the seconds until the waiter at a position should start; None if that is unknown.

    Every waiter before it counts as a hold of its task's usual duration.
    """
    lock, usual = detail.lock, detail.usual_of.get(task or "")
    if usual is None or lock.pause or not lock.limit:
        return None
    left = []
    for holder in lock.holders:
        known = detail.usual_of.get(holder.task or "", usual)
        age = lock.as_of - holder.acquired_at if is_at_work(holder) else 0.0
        left.append(max(0.0, known.held_for - age))
    rounds, slot = divmod(position - 1, lock.limit)
    return rounds * usual.held_for + (sorted(left)[min(slot, len(left) - 1)] if left else 0.0)


def _holds(count: int) -> str:
    return format_count(count, "past hold")
