"""Why a task does not run, or who has a lock, in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_locks.admin.durations import is_at_work
from celery_locks.admin.history import describe_entry, history
from celery_locks.admin.humanize import format_count, format_duration, format_ratio, format_time
from celery_locks.admin.listing import list_locks, suggest
from celery_locks.admin.liveness import Detail, Liveness, examine
from celery_locks.admin.parked import about_parked, about_position, find_parked
from celery_locks.admin.rates import about_delay, about_rate
from celery_locks.core.deadlocks import find_cycle, read_waits
from celery_locks.core.locks import Locks
from celery_locks.errors import LockConflict
from celery_locks.integration.broker_messages import Inconclusive, open_broker
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport, find_task, outcome
from celery_locks.skipped import RATE_LIMITED, is_skipped
from celery_locks.types import Blocker, Conflict, Holder, LockInfo, Override
from celery_locks.validation import QUEUED, check_name

# The lock for which a task is parked, and its position.
Parked = tuple[str, int]

_SHOWN = 5
ENDED_STATES = ("SUCCESS", "FAILURE", "REVOKED")


@dataclass(frozen=True, slots=True)
class Why:
    """The answer about a lock name or a task id; ``locks`` are the locks that it is about.

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


def why(locks: Locks, subject: str, app: Any = None, *, report: ActiveReport | None = None) -> Why:
    """Say who holds a lock, since when, whether the holder is alive, who waits and what was done.

    ``report`` is what the workers answered a moment ago; without it they are asked.
    """
    check_name(subject)
    by_name = [lock for name in _names(subject) if (lock := locks.info(name))]
    if by_name:
        details = [examine(locks, lock, app, report) for lock in by_name]
        about = (*_about_all(locks, details), *about_rate(locks, subject))
        return Why(subject, about, tuple(details))
    parked = find_parked(locks, subject)
    found = [examine(locks, lock, app, report) for lock in _locks_of_task(locks, subject, parked)]
    if found:
        roles = [*_task_roles(subject, found), *_parked_role(subject, found, parked)]
        sentences = [*roles, *_about_all(locks, found)]
        return Why(subject, tuple(sentences), tuple(found))
    about_task = [*about_rate(locks, subject), *about_delay(locks, subject)]
    if not about_task and app is not None:  # a worker keeps the message of a delayed task
        about_task += _about_task(subject, app)
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


def _locks_of_task(locks: Locks, task_id: str, parked: Parked | None) -> Iterator[LockInfo]:
    """Yield the locks that a task holds or waits for; a parked one may wait far behind."""
    for lock in list_locks(locks):
        is_parked = parked is not None and parked[0] == lock.name
        if is_parked or any(it.task_id == task_id for it in (*lock.holders, *lock.waiters)):
            yield lock


def _parked_role(task_id: str, details: list[Detail], parked: Parked | None) -> Iterator[str]:
    for detail in details:
        if parked is not None and parked[0] == detail.lock.name:
            tasks = {it.task_id: it.task for it in detail.lock.waiters if it.is_parked}
            task = tasks.get(task_id, next(iter(tasks.values()), None))
            yield about_position(detail, task, task_id, parked[1])


def _task_roles(task_id: str, details: list[Detail]) -> Iterator[str]:
    for detail in details:
        lock = detail.lock
        if any(holder.task_id == task_id for holder in lock.holders):
            yield f"Task {task_id} holds lock {lock.name!r}."
        for position, waiter in enumerate(lock.waiters, 1):
            if waiter.task_id == task_id and not waiter.is_parked:
                yield (
                    f"Task {task_id} waits for lock {lock.name!r}, "
                    f"as number {position} of {len(lock.waiters)}."
                )


def _about_all(locks: Locks, details: list[Detail]) -> Iterator[str]:
    for detail in details:
        yield from _about(detail)
        yield from about_waiting_holders(locks, detail.lock)
        yield from _last_action(locks, detail.lock.name)


def _about(detail: Detail) -> Iterator[str]:
    lock = detail.lock
    yield from about_overrides(lock)
    for alive in detail.liveness[:_SHOWN]:
        yield from _about_holder(lock, alive)
        if alive.verdict != "gone" and (likely := likely_end(detail, alive.holder)):
            yield likely
    if not lock.holders:
        yield f"Nobody holds lock {lock.name!r} now."
    elif lock.limit > 1:
        yield f"{len(lock.holders)} of its {lock.limit} slots are taken."
    if lock.holders and lock.shared:
        yield "Its holders share it: others with shared=True may join them while nobody waits."
    yield from about_parked(detail)
    yield from _about_waiters(lock)


def about_overrides(lock: LockInfo) -> Iterator[str]:
    """Say what operators set for a lock, and whether its callers disagree about its limit."""
    if lock.pause:
        yield (
            f"Lock {lock.name!r} is {lock.pause}. Nobody can acquire it; "
            f"`locks resume {shlex.quote(lock.pause.glob or lock.name)}` ends the pause."
        )
    if lock.limit_override:
        yield f"Lock {lock.name!r} is {lock.limit_override}. `locks limit … --reset` ends that."
    if lock.other_limits:
        limits = " and ".join(map(str, (lock.limit, *lock.other_limits)))
        yield (
            f"Its callers disagree about its limit ({limits}): each gets a slot by its own limit."
        )


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
        yield f"If it is not renewed, it becomes free in {format_duration(left)}."
    if alive.verdict == "gone":
        yield "`sweep` releases it at once."
    if alive.verdict == "queued":
        yield f"If no worker starts it, the lock becomes free in {format_duration(left)}."


def likely_end(detail: Detail, holder: Holder) -> str:
    """Say how long such a hold usually takes, and when this one should end; "" if unknown."""
    usual = detail.usual_of.get(holder.task or "") if is_at_work(holder) else None
    if usual is None:
        return ""
    holds = format_count(usual.holds, "past hold")
    takes = f"It usually takes {format_duration(usual.held_for)} ({holds})"
    age = detail.lock.as_of - holder.acquired_at
    if age < usual.held_for:
        return f"{takes}, so it is likely to end in about {format_duration(usual.held_for - age)}."
    return f"{takes}; it has already taken {format_ratio(age, usual.held_for)} × as long."


def _about_waiters(lock: LockInfo) -> Iterator[str]:
    if not lock.waiters:
        yield "Nobody waits for it."
        return
    yield f"It has {format_count(lock.waiting, 'waiter')}:"
    for position, waiter in enumerate(lock.waiters[:_SHOWN], 1):
        waits = "parked for" if waiter.is_parked else "for"
        yield f"  {position}. {waiter}, {waits} {format_duration(lock.as_of - waiter.acquired_at)}"
    if lock.waiting > _SHOWN:
        yield f"  … and {lock.waiting - _SHOWN} more"


def _about_task(task_id: str, app: Any) -> Iterator[str]:
    """Say what Celery knows about a task that neither holds a lock nor waits for one."""
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
    """Say whether a worker took the message and never acknowledged it; Redis brokers only."""
    try:
        with open_broker(app, PATIENCE) as broker:
            messages = broker.unacked([task_id]).get(task_id, [])
    except Inconclusive:
        return
    for message in messages:
        yield (
            f"The message of task {task_id} was delivered to a worker that has not acknowledged it "
            "and does not report the task. It is delivered again in about "
            f"{format_duration(message.returns_in)} (visibility_timeout); "
            "`sweep --restore` delivers it now if the task's lock has lapsed."
        )


def _result(task_id: str, state: str, value: Any) -> str:
    """Describe the result; for a skip or a conflict also the lock that was busy."""
    what = "holds no lock and waits for none"
    if is_skipped(value) and value.get("reason") == RATE_LIMITED:
        what = f"did not run: the rate of {value.get('rate')!r} allowed no start"
    elif is_skipped(value) and "reason" in value:
        what = f"did not run: its work was done before ({value['reason']})"
    elif is_skipped(value) and value.get("pause"):
        pause = Override.from_dict(value["pause"])
        what = f"was skipped because lock {value['lock']!r} was {pause}"
    elif is_skipped(value):
        holder = Holder.from_dict(value["holder"]) if value["holder"] else "an unknown holder"
        what = f"was skipped because lock {value['lock']!r} was held by {holder}"
    elif isinstance(value, LockConflict):
        conflict: Conflict = value.conflict
        what = f"did not run: {conflict}"
    return f"Task {task_id} {what}. Its result is {state}."


def _about_nothing(locks: Locks, subject: str) -> Iterator[str]:
    yield (
        f"No lock {subject!r} is held or waited for, and no worker reports a task with that id. "
        "(A message that waits in its queue cannot be seen here.)"
    )
    if near := suggest(locks, subject):
        yield near
    yield from _last_action(locks, subject)


def _last_action(locks: Locks, name: str) -> Iterator[str]:
    for entry in history(locks, name, limit=1, only_actions=True):
        yield describe_entry(entry)


def about_waiting_holders(locks: Locks, lock: LockInfo) -> Iterator[str]:
    """Describe each holder that waits for another lock, and a deadlock if there is one."""
    for holder in [holder for holder in lock.holders if holder.owner][:_SHOWN]:
        waits = locks.run(read_waits(locks.commands, holder.owner))
        wait = waits.get(holder.owner)
        if wait is None:
            continue
        cycle = find_cycle(wait, waits, _is_owned_by(holder.owner))
        if cycle:
            yield _describe_deadlock(lock.name, holder, cycle)
            return
        yield f"Its holder, {holder}, waits for lock {wait.name!r}, held by {wait.holders[0]}."


def _is_owned_by(owner: str) -> Callable[[Holder], bool]:
    return lambda holder: holder.owner == owner


def _describe_deadlock(name: str, holder: Holder, cycle: tuple[Blocker, ...]) -> str:
    if len(cycle) == 1:
        return (
            f"Deadlock: {holder} holds lock {name!r} and waits for lock {cycle[0].name!r}, "
            "which it holds itself. Its code should pass reentrant=True, or acquire it only once."
        )
    steps = [f"{holder} holds lock {name!r} and waits for lock {cycle[0].name!r}"]
    for step, following in pairwise(cycle):
        steps.append(f"{step.holder} holds that and waits for lock {following.name!r}")
    return (
        f"Deadlock: {'; '.join(steps)}, which the first one holds. None of them can go on: release "
        "one of these locks by force, and acquire them in the same order everywhere."
    )
