"""The decision after a conflict or without a lock server, from facts and options.

No Celery, no Redis: only ``integration/`` turns a decision into calls of Celery.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from celery_locks.options import LATEST, PARKING, LockOptions, OnPublish
from celery_locks.types import Conflict, Holder

DecisionKind = Literal["skip", "raise", "requeue", "park", "run"]
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
_MOST_DOUBLINGS = 10  # far past the longest pause; 2**1024 would be no float
# Seconds for which a server that refuses us (password, permission, certificate) is tried again:
# longer than the rotation of a password takes, but not forever.
REFUSED_PATIENCE = 3600.0
# Fields that a publisher adds to a reservation:
AWAITED = "awaited"  # others wait for the message's id
SENT_TO = "queue"  # the queue that the call named; None if it named only an exchange
CALL = "call"  # random: tells calls apart to which the caller gave the same task id


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the task, the reason for the log, and the pause before the next try."""

    kind: DecisionKind
    why: str
    pause: float = 0.0
    latest: bool = False  # park it in place of the one that waits


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts about the call."""

    task_id: str | None
    attempt: int = 0
    has_followers: bool = False  # a chain link or callback would be run on the result
    can_requeue: bool = True  # False for eager and direct calls: there is no message
    can_park: bool = True  # False if too many wait already
    times_requeued: int = 0
    patience_used: float = 0.0
    longest_pause: float = LONGEST_PAUSE
    had_reservation: bool = False  # it took a lock when it was published
    refused_for: float | None = None  # seconds since the server first refused us; None: it did not


def on_conflict(conflict: Conflict, options: LockOptions, call: Situation) -> Decision:
    """Decide what a busy lock means for the task."""
    if conflict.has_copy_of(call.task_id, call.attempt):
        # Skipping a redelivered copy would acknowledge the original's message: it must come back.
        # So must a retry while a copy of an earlier attempt runs.
        return _requeue(call, "another copy of this message or of an earlier attempt is running")
    why = _reason(conflict)
    waits = options.on_conflict == "wait"
    decision = options.then if waits else options.on_conflict
    if decision in PARKING:
        if call.can_requeue and call.can_park:
            return Decision("park", why, latest=decision in LATEST)
        return Decision("raise", f"{why}, and {options.max_parked} wait or there is no message")
    if call.had_reservation and conflict.is_behind_messages:
        # Its reservation lapsed, or another message is about to replace it: look again later.
        return _requeue(call, "another message has its reservation")
    is_over = call.patience_used >= options.patience
    if waits and conflict.is_behind_messages and not is_over:
        return _requeue(call, why)  # nobody waits in a slot for a queued message
    if decision == "requeue":
        if is_over and not waits:
            return Decision("raise", f"its patience of {options.patience:g} s is over")
        return _requeue(call, why)
    if decision == "skip" and conflict.pause and conflict.pause.is_guard:
        # It may be the only call: nobody knows of a run that it would duplicate.
        return _requeue(call, why)
    if decision == "skip":
        if call.has_followers:
            return Decision("raise", "a skip would hand its value to the next link")
        return Decision("skip", why)
    return Decision("raise", why)


def _reason(conflict: Conflict) -> str:
    if conflict.pause and conflict.pause.is_guard:
        return "the lock server lost its data, and the lock may still be held"
    return "the lock is paused" if conflict.pause else "the lock is busy"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The decision for a duplicate call, and the call that it duplicates."""

    decision: OnPublish
    other: Holder | None = None


def on_duplicate(
    conflict: Conflict, options: LockOptions, task: str, task_id: str, *, id_is_frozen: bool
) -> Duplicate:
    """Decide what to do with a call if the same call is already queued or running.

    "allow" leaves the decision to the run: inside a canvas, where others wait for this id; if the
    holder is another task with the same key, or a plain process; and if the call to replace
    already runs, has the same id as this one, or others wait for its id.
    """
    decision = "replace" if options.has_window else options.on_publish
    if decision in PARKING:
        return Duplicate(decision)  # it duplicates nothing: it waits for its turn
    # A limit on the number of messages, and a wait, are for those of all tasks with the same key.
    counts_all = decision == "wait" or (options.max_queued and decision in ("raise", "skip"))
    others = [it for it in conflict.holders if it.job_id and (counts_all or it.task == task)]
    if decision == "wait":
        decision = "raise"  # it has waited already
    if decision == "replace":
        others = [
            it
            for it in others
            if it.attempt == 0 and it.job_id != task_id and not it.extra.get(AWAITED)
        ]
    if id_is_frozen or not others or decision == "allow":
        return Duplicate("allow")
    return Duplicate(decision, others[0])


def on_unavailable(options: LockOptions, call: Situation) -> Decision:
    """Decide what an unavailable lock server means for the task."""
    if options.on_unavailable == "run":
        return Decision("run", "the lock server is away and the task may run unlocked")
    if options.on_unavailable != "requeue":
        return Decision("raise", "the lock server is away")
    if call.refused_for is None:
        return _requeue(call, "the lock server is away")
    if call.refused_for >= REFUSED_PATIENCE:
        return Decision("raise", f"the lock server refuses us for {REFUSED_PATIENCE:g} s already")
    return _requeue(call, "the lock server refuses us")


def on_done(call: Situation) -> Decision:
    """Requeue: another copy of this message has ended, or is replacing it."""
    return _requeue(call, "another copy of this very message has run, or is replacing it")


def _requeue(call: Situation, why: str) -> Decision:
    if not call.can_requeue:
        return Decision("raise", f"{why}, and there is no message to put back")
    doublings = min(call.times_requeued, _MOST_DOUBLINGS)
    longest = min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE, call.longest_pause)
    return Decision("requeue", why, pause=longest * random.uniform(0.5, 1.0))
