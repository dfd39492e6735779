"""What follows from a conflict or an unreachable server: facts and options in, a decision out.

No Celery, no Redis: ``integration/task.py`` alone turns a decision into what Celery understands.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from celery_locks.options import LockOptions, OnPublish
from celery_locks.types import Conflict, Holder

DecisionKind = Literal["skip", "raise", "requeue", "run"]
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
_MOST_DOUBLINGS = 10  # far past the longest pause; 2**1024 would be no float
# Seconds for which a server that refuses us (password, permission, certificate) is tried again:
# longer than the rotation of a password takes; nobody is served by a task that waits for ever.
REFUSED_PATIENCE = 3600.0
AWAITED = "awaited"  # said of a message: others wait for its id
SENT_TO = "queue"  # said of a message: the queue that its call named; None if only an exchange


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the task, and why, for the log; ``pause`` is before it is tried again."""

    kind: DecisionKind
    why: str
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of the call at hand."""

    task_id: str | None
    attempt: int = 0
    has_followers: bool = False  # a chain link or callback would be run on the result
    can_requeue: bool = True  # False for eager and direct calls: there is no message
    times_requeued: int = 0
    patience_used: float = 0.0
    longest_pause: float = LONGEST_PAUSE
    had_reservation: bool = False  # it took a lock when it was published
    refused_for: float | None = None  # seconds since the server first refused us; None: it did not


def on_conflict(conflict: Conflict, options: LockOptions, call: Situation) -> Decision:
    """The lock is busy."""
    if conflict.has_copy_of(call.task_id, call.attempt):
        # Skipping a redelivered copy would acknowledge the original's message: it must come back.
        return _again(call, "another copy of this very message is running")
    if call.had_reservation and conflict.is_behind_messages:
        # Its place lapsed, or another message is just about to replace it: it comes back to see.
        return _again(call, "another message has its place in the queue")
    if options.on_conflict == "requeue" or (
        options.on_conflict == "wait" and conflict.is_behind_messages
    ):
        if call.patience_used >= options.patience:
            return Decision("raise", f"its patience of {options.patience:g} s is over")
        return _again(call, "the lock is busy")
    if options.on_conflict == "skip":
        if call.has_followers:
            return Decision("raise", "a skip would hand its value to the next link")
        return Decision("skip", "the lock is busy")
    return Decision("raise", "the lock is busy")


@dataclass(frozen=True, slots=True)
class Duplicate:
    """What to do with a call that finds its like, and which one that is."""

    decision: OnPublish
    other: Holder | None = None


def on_duplicate(
    conflict: Conflict, options: LockOptions, task: str, *, id_is_frozen: bool
) -> Duplicate:
    """The same call is queued or running already, and here comes another.

    "allow" leaves it to the run: inside a canvas, where others wait for this very id; where the
    holder is no call of this task but of another with the same key, or a plain process; and where
    the one to be replaced runs already, or others wait for its id.
    """
    others = [holder for holder in conflict.holders if holder.job_id and holder.task == task]
    decision = "replace" if options.debounce else options.on_publish
    if decision == "replace":
        others = [it for it in others if it.attempt == 0 and not it.extra.get(AWAITED)]
    if id_is_frozen or not others or decision == "allow":
        return Duplicate("allow")
    return Duplicate(decision, others[0])


def on_unavailable(options: LockOptions, call: Situation) -> Decision:
    """Nobody knows whether the lock is free."""
    if options.on_unavailable == "run":
        return Decision("run", "the lock server is away and the task may run unlocked")
    if options.on_unavailable != "requeue":
        return Decision("raise", "the lock server is away")
    if call.refused_for is None:
        return _again(call, "the lock server is away")
    if call.refused_for >= REFUSED_PATIENCE:
        return Decision("raise", f"the lock server refuses us for {REFUSED_PATIENCE:g} s already")
    return _again(call, "the lock server refuses us")


def on_done(call: Situation) -> Decision:
    """Another copy of this message has ended, or replaced it, but that is not to be seen yet."""
    return _again(call, "another copy of this very message has run, or is replacing it")


def _again(call: Situation, why: str) -> Decision:
    if not call.can_requeue:
        return Decision("raise", f"{why}, and there is no message to put back")
    doublings = min(call.times_requeued, _MOST_DOUBLINGS)
    longest = min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE, call.longest_pause)
    return Decision("requeue", why, pause=longest * random.uniform(0.5, 1.0))
