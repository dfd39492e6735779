"""Why does it not run? Answered in sentences, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_locks.admin.actions import history
from celery_locks.admin.deadlocks import about_waiting_holders
from celery_locks.admin.durations import is_at_work, times
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import Detail, Liveness, examine
from celery_locks.admin.suggest import suggest
from celery_locks.core.locks import Locks
from celery_locks.errors import LockConflict
from celery_locks.integration.redis_broker import Inconclusive, open_broker
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport, find_task, outcome
from celery_locks.skipped import is_skipped
from celery_locks.types import QUEUED, Conflict, HistoryEntry, Holder, LockInfo, check_name

_SHOWN = 5
ENDED_STATES = ("SUCCESS", "FAILURE", "REVOKED")


@dataclass(frozen=True, slots=True)
class Why:
    """The answer about a lock's name or a task's id; ``locks`` are those it is about.

    ``is_known`` is False if there is neither such a lock nor a trace of such a task.
    """

    subject: str
    sentences: tuple[str, ...]
    locks: tuple[Detail, ...] = ()
    is_known: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "sentences": list(self.sentences),
            "locks": [detail.as_dict() for detail in self.locks],
        }


def why(locks: Locks, subject: str, app: Any = None, *, roll: ActiveReport | None = None) -> Why:
    """Who holds it, since when, whether that holder lives, who waits, what was done to it.

    ``roll`` is what the workers answered a moment ago; without it they are asked.
    """
    check_name(subject)
    by_name = [lock for name in _names(subject) if (lock := locks.info(name))]
    if by_name:
        details = [examine(locks, lock, app, roll) for lock in by_name]
        return Why(subject, tuple(_about_all(locks, details)), tuple(details))
    found = [examine(locks, lock, app, roll) for lock in _locks_of_task(locks, subject)]
    if found:
        parts = [*_parts_of_task(subject, found), *_about_all(locks, found)]
        return Why(subject, tuple(parts), tuple(found))
    about_task = list(_about_task(subject, app)) if app is not None else []
    if about_task:
        return Why(subject, tuple(about_task))
    return Why(subject, tuple(_about_nothing(locks, subject)), is_known=False)


def _names(subject: str) -> Iterator[str]:
    yield subject
    try:
        check_name(subject + QUEUED)
    except ValueError:
        return
    yield subject + QUEUED


def _locks_of_task(locks: Locks, task_id: str) -> Iterator[LockInfo]:
    for lock in list_locks(locks):
        if any(one.task_id == task_id for one in (*lock.holders, *lock.waiters)):
            yield lock


def _parts_of_task(task_id: str, details: list[Detail]) -> Iterator[str]:
    for detail in details:
        lock = detail.lock
        if any(holder.task_id == task_id for holder in lock.holders):
            yield f"Task {task_id} holds lock {lock.name!r}."
        for place, waiter in enumerate(lock.waiters, 1):
            if waiter.task_id == task_id:
                yield (
                    f"Task {task_id} waits for lock {lock.name!r}, "
                    f"as number {place} of {len(lock.waiters)}."
                )


def _about_all(locks: Locks, details: list[Detail]) -> Iterator[str]:
    for detail in details:
        yield from _about(detail)
        yield from about_waiting_holders(locks, detail.lock)
        yield from _done_to(locks, detail.lock.name)


def _about(detail: Detail) -> Iterator[str]:
    lock = detail.lock
    for alive in detail.liveness[:_SHOWN]:
        yield from _about_holder(lock, alive)
        if alive.verdict != "gone" and (likely := likely_end(detail, alive.holder)):
            yield likely
    if not lock.holders:
        yield f"Nobody holds lock {lock.name!r} at this moment."
    elif lock.limit > 1:
        yield f"{len(lock.holders)} of its {lock.limit} slots are taken."
    yield from _about_waiters(lock)


def _about_holder(lock: LockInfo, alive: Liveness) -> Iterator[str]:
    holder = alive.holder
    age = lock.as_of - holder.acquired_at
    retried = f", retry {holder.retries}" if holder.retries > 0 else ""
    yield (
        f"Lock {lock.name!r} is held by {holder}{retried}, since {format_time(holder.acquired_at)} "
        f"({format_duration(age)}), with fence {holder.fence}."
    )
    yield alive.sentence
    left = max(0.0, holder.expires_at - lock.as_of)
    if alive.verdict in ("gone", "silent", "late"):
        yield f"If it is not renewed it comes free by itself in {format_duration(left)}."
    if alive.verdict == "gone":
        yield "`sweep` frees it at once."
    if alive.verdict == "queued":
        yield f"If no worker begins it, the lock comes free in {format_duration(left)}."


def likely_end(detail: Detail, holder: Holder) -> str:
    """How long such a hold usually takes and what follows for this one; "" if nobody knows."""
    usual = detail.usual_of.get(holder.task or "") if is_at_work(holder) else None
    if usual is None:
        return ""
    holds = "1 past hold" if usual.holds == 1 else f"{usual.holds} past holds"
    takes = f"It usually takes {format_duration(usual.held_for)} ({holds})"
    age = detail.lock.as_of - holder.acquired_at
    if age < usual.held_for:
        return f"{takes}, so it is likely to end in about {format_duration(usual.held_for - age)}."
    return f"{takes}; it has already been {times(age, usual)} × the usual."


def _about_waiters(lock: LockInfo) -> Iterator[str]:
    if not lock.waiters:
        yield "Nobody waits for it."
        return
    count = "1 waiter" if len(lock.waiters) == 1 else f"{len(lock.waiters)} waiters"
    yield f"It has {count}:"
    for place, waiter in enumerate(lock.waiters[:_SHOWN], 1):
        yield f"  {place}. {waiter}, for {format_duration(lock.as_of - waiter.acquired_at)}"
    if len(lock.waiters) > _SHOWN:
        yield f"  … and {len(lock.waiters) - _SHOWN} more"


def _about_task(task_id: str, app: Any) -> Iterator[str]:
    """What Celery knows of a task that neither holds a lock nor waits for one."""
    workers = find_task(app, task_id)
    for worker, state in workers:
        yield f"Task {task_id} is {state} on worker {worker} and holds no lock."
    state, value = outcome(app, task_id)
    if state and state != "PENDING":
        yield _result(task_id, state, value)
    can_ask = app.conf.worker_enable_remote_control
    if can_ask and not workers and state not in ENDED_STATES:
        yield from _about_message(task_id, app)


def _about_message(task_id: str, app: Any) -> Iterator[str]:
    """Whether a worker took its message and never acknowledged it; only Redis brokers can say."""
    try:
        with open_broker(app, PATIENCE) as broker:
            messages = broker.unacked([task_id]).get(task_id, [])
    except Inconclusive:
        return
    for message in messages:
        yield (
            f"The message of task {task_id} went to a worker that has not acknowledged it and does "
            "not answer for it. It is delivered again in about "
            f"{format_duration(message.returns_in)} (visibility_timeout); "
            "`sweep --restore` does it now if the task's lock has lapsed."
        )


def _result(task_id: str, state: str, value: Any) -> str:
    """What its result says; of a skip or a conflict also what was in the way."""
    what = "holds no lock and waits for none"
    if is_skipped(value) and "reason" in value:
        what = f"did not run: its work was done before ({value['reason']})"
    elif is_skipped(value):
        holder = Holder.from_dict(value["holder"]) if value["holder"] else "nobody we know"
        what = f"was skipped because lock {value['lock']!r} was held by {holder}"
    elif isinstance(value, LockConflict):
        conflict: Conflict = value.conflict
        what = f"did not run: {conflict}"
    return f"Task {task_id} {what}. Its result is {state}."


def _about_nothing(locks: Locks, subject: str) -> Iterator[str]:
    yield f"No lock {subject!r} is held or waited for, and no task of that id is known."
    if near := suggest(locks, subject):
        yield near
    yield from _done_to(locks, subject)


def _done_to(locks: Locks, name: str) -> Iterator[str]:
    for act in history(locks, name, limit=1, only_acts=True):
        yield describe_entry(act)


def describe_entry(act: HistoryEntry) -> str:
    """An act, or the end of a hold, in a sentence."""
    whom = ", ".join(str(holder) for holder in act.holders[:_SHOWN]) or "nobody"
    if act.held_for is not None:
        return f"{format_time(act.at)}: {whom} {_ended(act, format_duration(act.held_for))}."
    because = f" Reason given: {act.why}" if act.why else " No reason was given."
    who = act.by or "somebody"
    if act.act == "reset":
        return f"{format_time(act.at)}: {who} let the work for {act.name!r} be done again.{because}"
    if act.act == "stop":
        asked = f"{who} asked {whom} to stop and release {act.name!r}"
        return f"{format_time(act.at)}: {asked}.{because}"
    return f"{format_time(act.at)}: {who} took lock {act.name!r} from {whom}.{because}"


def _ended(act: HistoryEntry, held_for: str) -> str:
    if act.act == "lapsed":
        return f"let lock {act.name!r} lapse after {held_for}: {act.why}"
    if act.why:
        return f"had lock {act.name!r} for {held_for}: {act.why}"
    return f"gave lock {act.name!r} back after {held_for}"


def format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_duration(seconds: float) -> str:
    """For people: 7 s, 4 min 5 s, 3 h 2 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
