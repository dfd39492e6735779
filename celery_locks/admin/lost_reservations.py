"""Reservations (locks held from publish on) whose message is in no queue and with no worker.

Should such a message turn up after all, say from a backup of the broker, it runs like any other: it
has no reservation any more, and the lock of its run keeps it from running beside a newer call.

Messages that are kept (``keep_message=True``) are left out: a worker publishes them again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import last_renewed
from celery_locks.core.locks import Locks
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.store.commands.kept_messages import KeptCommands
from celery_locks.types import Holder, LockInfo

Reservations = list[tuple[LockInfo, Holder]]


def find_lost_reservations(
    locks: Locks, app: Any, queued_for: float, timeout: float
) -> tuple[Reservations, str]:
    """Find reservations without a message, and say why others could not be judged, usually ""."""
    if app is None:
        return [], ""
    waiting, at_work = _read_reservations(locks, queued_for)
    kept = {it.holder.token for it in locks.run(KeptCommands(locks.commands).scan(0.0))}
    suspects = [
        (lock, holder)
        for lock, holder in waiting
        if holder.task_id not in at_work and holder.token not in kept
    ]
    answer = find_lost_messages(app, [holder for _, holder in suspects], timeout)
    lost = [(lock, holder) for lock, holder in suspects if holder.task_id in answer.task_ids]
    if not answer.trouble:
        return lost, ""
    left = f"Locks of queued messages that were left alone: {len(suspects) - len(lost)}"
    return lost, f"{left}. Reason: {answer.trouble}."


def _read_reservations(
    locks: Locks, queued_for: float
) -> tuple[Reservations, Collection[str | None]]:
    """Read the reservations that are old enough, and the ids of tasks that run or wait.

    A task that waits for its lock has started, but keeps its reservation until it has the lock.
    """
    reservations: Reservations = []
    at_work: set[str | None] = set()
    for lock in list_locks(locks):
        at_work.update(waiter.task_id for waiter in lock.waiters)
        for holder in lock.holders:
            if not holder.is_queued:
                at_work.add(holder.task_id)
            elif lock.as_of - _published_at(holder) >= queued_for:
                reservations.append((lock, holder))
    return reservations, at_work


def _published_at(holder: Holder) -> float:
    """Return about when its message was published.

    A reservation that replaced another keeps its ``acquired_at`` but is renewed. The time of a
    retry is not stored; its message is sent before the reservation is made, so it may be any age.
    """
    return last_renewed(holder) if holder.retries < 0 else holder.acquired_at
