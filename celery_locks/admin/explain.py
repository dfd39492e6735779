"""Why does it not run? Answered in sentences, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_locks.admin.acts import history
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import Detail, Liveness, examine
from celery_locks.admin.usual import is_at_work, times
from celery_locks.errors import LockConflict
from celery_locks.integration.roll_call import RollCall, outcome, whereabouts
from celery_locks.locks import Locks
from celery_locks.model import Act, Conflict, Holder, LockInfo, check_name
from celery_locks.store.verbs import QUEUED

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Why:
    """The answer about a lock's name or a task's id; ``locks`` are those it is about."""

    subject: str
    sentences: tuple[str, ...]
    locks: tuple[Detail, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "sentences": list(self.sentences),
            "locks": [detail.as_dict() for detail in self.locks],
        }


def why(locks: Locks, subject: str, app: Any = None, *, roll: RollCall | None = None) -> Why:
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
    return Why(subject, tuple(_about_nothing(locks, subject, app)))


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
        f"Lock {lock.name!r} is held by {holder}{retried}, since {moment(holder.acquired_at)} "
        f"({span(age)}), with fence {holder.fence}."
    )
    yield alive.sentence
    left = max(0.0, holder.expires_at - lock.as_of)
    if alive.verdict in ("gone", "silent", "late"):
        yield f"If it is not renewed it comes free by itself in {span(left)}."
    if alive.verdict == "gone":
        yield "`sweep` frees it at once."
    if alive.verdict == "queued":
        yield f"If no worker begins it, the lock comes free in {span(left)}."


def likely_end(detail: Detail, holder: Holder) -> str:
    """How long such a hold usually takes and what follows for this one; "" if nobody knows."""
    usual = detail.usual_of.get(holder.task or "") if is_at_work(holder) else None
    if usual is None:
        return ""
    holds = "1 past hold" if usual.holds == 1 else f"{usual.holds} past holds"
    takes = f"It usually takes {span(usual.held_for)} ({holds})"
    age = detail.lock.as_of - holder.acquired_at
    if age < usual.held_for:
        return f"{takes}, so it is likely to end in about {span(usual.held_for - age)}."
    return f"{takes}; it has already been {times(age, usual)} × the usual."


def _about_waiters(lock: LockInfo) -> Iterator[str]:
    if not lock.waiters:
        yield "Nobody waits for it."
        return
    yield f"{len(lock.waiters)} wait{'s' if len(lock.waiters) == 1 else ''} for it:"
    for place, waiter in enumerate(lock.waiters[:_SHOWN], 1):
        yield f"  {place}. {waiter}, for {span(lock.as_of - waiter.acquired_at)}"
    if len(lock.waiters) > _SHOWN:
        yield f"  … and {len(lock.waiters) - _SHOWN} more"


def _about_nothing(locks: Locks, subject: str, app: Any) -> Iterator[str]:
    yield f"No lock {subject!r} is held or waited for, nor does a task of that id hold or wait."
    yield from _done_to(locks, subject)
    if app is None:
        return
    for worker, state in whereabouts(app, subject):
        yield f"Worker {worker} has the task as {state}."
    state, value = outcome(app, subject)
    if state and state != "PENDING":
        yield f"The task's result says {state}{_conflict(value)}."


def _conflict(value: Any) -> str:
    """What a skip or a conflict says of the lock that was in the way."""
    if _is_skip(value):
        holder = Holder.from_dict(value["holder"]) if value["holder"] else "nobody we know"
        return f": it was skipped because lock {value['lock']!r} was held by {holder}"
    if isinstance(value, LockConflict):
        conflict: Conflict = value.conflict
        return f": {conflict}"
    return ""


def _is_skip(value: Any) -> bool:
    """Whether it is what a task that we skipped returns, and not a result of the user's own."""
    if not isinstance(value, dict) or value.get("skipped") is not True or "holder" not in value:
        return False
    holder = value["holder"]
    is_holder = holder is None or (isinstance(holder, dict) and {"token", "fence"} <= holder.keys())
    return is_holder and isinstance(value.get("lock"), str)


def _done_to(locks: Locks, name: str) -> Iterator[str]:
    for act in history(locks, name, limit=1, only_acts=True):
        yield told(act)


def told(act: Act) -> str:
    """An act, or the end of a hold, in a sentence."""
    whom = ", ".join(str(holder) for holder in act.holders[:_SHOWN]) or "nobody"
    if act.held_for is not None:
        return f"{moment(act.at)}: {whom} {_ended(act, span(act.held_for))}."
    because = f" Reason given: {act.why}" if act.why else " No reason was given."
    who = act.by or "somebody"
    if act.act == "reset":
        return f"{moment(act.at)}: {who} let the work for {act.name!r} be done again.{because}"
    if act.act == "stop":
        return f"{moment(act.at)}: {who} asked {whom} to stop and give back {act.name!r}.{because}"
    return f"{moment(act.at)}: {who} took lock {act.name!r} from {whom}.{because}"


def _ended(act: Act, held_for: str) -> str:
    if act.act == "lapsed":
        return f"let lock {act.name!r} lapse after {held_for}: {act.why}"
    if act.why:
        return f"had lock {act.name!r} for {held_for}: {act.why}"
    return f"gave lock {act.name!r} back after {held_for}"


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float) -> str:
    """For people: 7 s, 4 min 5 s, 3 h 2 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
