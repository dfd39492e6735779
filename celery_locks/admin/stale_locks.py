"""Locks that their holders may have left behind, and freeing those that nobody will give back.

That is: of workers that are gone, and places in the queue (a lock held from publish on) whose
message is nowhere. Should such a message turn up after all, say out of a backup of the broker, it
runs like any other: it has no place any more, and the lock of its run keeps it from running beside
one that came meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_locks.admin.actions import force_release
from celery_locks.admin.durations import Usual, is_at_work, times, usual
from celery_locks.admin.jobs import Job, JobSearch
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import SUSPECT, Liveness, judge, last_renewed, without_message
from celery_locks.admin.pruning import trim
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport, inspect_active
from celery_locks.types import Holder, LockInfo

TIMES_USUAL = 10.0
"""A hold that takes so many times as long as its task's holds usually do is worth a look."""
QUEUED_FOR = 60.0
"""How old a place must be, in seconds, for its message to be looked for: it is taken before the
publish, which may be tried several times."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A holder that an operator should look at, and why."""

    name: str
    liveness: Liveness
    held_for: float
    is_old: bool
    usual: Usual | None = None  # if it has been held for many times as long

    @property
    def holder(self) -> Holder:
        return self.liveness.holder

    @property
    def sentence(self) -> str:
        old = f"It has been held for {self.held_for:.0f} s. " if self.is_old else ""
        if self.usual:
            old = (
                f"It has been held for {self.held_for:.0f} s, {times(self.held_for, self.usual)} × "
                f"the usual {self.usual.held_for:.0f} s. "
            )
        return old + self.liveness.sentence

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.liveness.verdict,
            "sentence": self.sentence,
            "held_for": self.held_for,
            "is_old": self.is_old,
            "usual": self.usual.as_dict() if self.usual else None,
            "holder": self.holder.as_dict(),
        }


class StaleLocks(list[Stale]):
    """What was found; ``doubt`` says why places in the queue could not be judged, usually none."""

    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """Whom the locks were taken from, and those whose worker is silent but may yet renew.

    ``doubt`` says why places in the queue were left that may have lost their message; usually none.
    ``trimmed`` entries of the store, which nobody needed any more, were cleared up as well.
    ``jobs`` says what happens to the jobs of dead workers (``jobs.py``).
    """

    freed: tuple[Stale, ...]
    spared: tuple[Stale, ...]
    doubt: str = ""
    trimmed: int = 0
    jobs: tuple[Job, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "freed": [one.as_dict() for one in self.freed],
            "spared": [one.as_dict() for one in self.spared],
            "doubt": self.doubt,
            "trimmed": self.trimmed,
            "jobs": [job.as_dict() for job in self.jobs],
        }


@dataclass(frozen=True, slots=True)
class Slow:
    """Who takes many times as long as usual; read once, not for every lock."""

    times: float = 0.0
    usual: Mapping[str, Usual] = field(default_factory=dict)

    def look(self, holder: Holder, held_for: float) -> Usual | None:
        """What is usual, if this holder is far beyond it; one past hold does not make a habit."""
        known = self.usual.get(holder.task or "") if is_at_work(holder) else None
        is_slow = known and known.holds > 1 and held_for > self.times * known.held_for
        return known if is_slow else None


NOT_SLOW = Slow()


def stale(
    locks: Locks,
    app: Any = None,
    older_than: float | None = None,
    timeout: float = PATIENCE,
    *,
    queued_for: float = QUEUED_FOR,
    times_usual: float | None = TIMES_USUAL,
) -> StaleLocks:
    """Held by a worker nobody answers for, or that does not run it, or not renewed, or for long.

    Long is ``older_than`` seconds, or ``times_usual`` × what the task's holds usually take (None:
    no matter). Or by a message that is nowhere, though published ``queued_for`` seconds ago.
    Without an app only the renewals are looked at. A worker that does not answer is asked again.
    """
    slow = Slow(times_usual, usual(locks)) if times_usual is not None else NOT_SLOW
    roll, found = _look(locks, app, older_than, timeout, slow)
    unasked = f"Nobody knows which workers live: {roll.trouble}." if roll and roll.trouble else ""
    purged, doubt = _purged(locks, app, queued_for, timeout, older_than)
    known = {(one.name, one.holder.token) for one in purged}
    others = [one for one in found if (one.name, one.holder.token) not in known]
    answer = StaleLocks(others + purged)
    answer.doubt = f"{unasked} {doubt}".strip()
    return answer


def _look(
    locks: Locks, app: Any, older_than: float | None, timeout: float, slow: Slow = NOT_SLOW
) -> tuple[ActiveReport | None, list[Stale]]:
    roll = inspect_active(app, timeout=timeout) if app is not None else None
    found = list(_suspects(locks, roll, older_than, slow))
    silent = {one.holder.worker for one in found if one.liveness.verdict in ("silent", "gone")}
    if roll is None or not silent:
        return roll, found
    again = roll.merged(inspect_active(app, [name for name in silent if name], timeout))
    seconds = (_second_look(locks, old, again, older_than, slow) for old in found)
    return again, [one for one in seconds if one]


def _suspects(
    locks: Locks, roll: ActiveReport | None, older_than: float | None, slow: Slow
) -> Iterator[Stale]:
    for lock in list_locks(locks):
        for holder in lock.holders:
            if one := _suspect(lock, holder, roll, older_than, slow):
                yield one


def _suspect(
    lock: LockInfo, holder: Holder, roll: ActiveReport | None, older_than: float | None, slow: Slow
) -> Stale | None:
    liveness = judge(holder, lock.as_of, roll)
    held_for = lock.as_of - holder.acquired_at
    is_old = older_than is not None and held_for > older_than
    beyond = slow.look(holder, held_for)
    if liveness.verdict in SUSPECT or is_old or beyond:
        return Stale(lock.name, liveness, held_for, is_old, beyond)
    return None


def _second_look(
    locks: Locks, old: Stale, roll: ActiveReport, older_than: float | None, slow: Slow
) -> Stale | None:
    """The same holder as it is now; None if it has given the lock back, or is well."""
    lock = locks.info(old.name)
    for holder in lock.holders if lock else ():
        if lock and holder.token == old.holder.token:
            return _suspect(lock, holder, roll, older_than, slow)
    return None


def sweep(
    locks: Locks,
    app: Any,
    *,
    dry_run: bool = False,
    wait: float = 0.0,
    by: str = "",
    timeout: float = PATIENCE,
    queued_for: float = QUEUED_FOR,
    restore: bool = False,
) -> Swept:
    """Free the locks of workers that are gone, and of messages that are nowhere; trim the store.

    Gone is who did not answer twice and whose renewal is overdue. ``wait`` so many seconds for the
    latter where only the former is certain. What else a dead worker held lapses by itself.
    Messages are looked for from ``queued_for`` seconds after they took their place. With
    ``restore`` the unacknowledged messages of dead workers are put back into their queues, under
    the conditions that ``jobs.py`` names (Redis brokers only).
    """
    ends = time.monotonic() + wait
    while True:
        found = _of_silent_workers(locks, app, timeout)
        gone = [one for one in found if one.liveness.verdict == "gone"]
        spared = [one for one in found if one.liveness.verdict != "gone"]
        if not spared or time.monotonic() >= ends:
            break
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
    # At once: to look through the queues takes its time, and who is gone may come back in it.
    freed = [one for one in gone if dry_run or _free(locks, one, by)]
    purged, doubt = _purged(locks, app, queued_for, timeout)
    freed += [one for one in purged if dry_run or _free(locks, one, by)]
    trimmed = trim(locks, dry_run=dry_run)
    dead = [one.holder for one in freed if one.liveness.verdict == "gone"]
    jobs, why_not = JobSearch(app, timeout, restore, dry_run).jobs(locks, dead)
    doubt = f"{doubt} {why_not}".strip()
    return Swept(tuple(freed), tuple(spared), doubt, trimmed, tuple(jobs))


def _of_silent_workers(locks: Locks, app: Any, timeout: float) -> list[Stale]:
    roll, found = _look(locks, app, None, timeout)
    if roll and roll.trouble:
        raise LockUnavailable(f"nobody knows which workers live: {roll.trouble}")
    return [one for one in found if one.liveness.verdict in ("silent", "gone")]


def _free(locks: Locks, one: Stale, by: str) -> bool:
    """Unless it was renewed since it was judged."""
    judged = (one.holder.token, one.holder.expires_at)
    if judged not in [(holder.token, holder.expires_at) for holder in locks.holders(one.name)]:
        return False
    reason = f"swept: {one.liveness.sentence}"
    return bool(force_release(locks, one.name, one.holder.token, reason=reason, by=by))


def _purged(
    locks: Locks, app: Any, queued_for: float, timeout: float, older_than: float | None = None
) -> tuple[list[Stale], str]:
    """Places in the queue whose message is nowhere, and why others could not be judged."""
    if app is None:
        return [], ""
    waiting, at_work = _places(locks, queued_for)
    suspects = [one for one in waiting if one[1].task_id not in at_work]
    answer = find_lost_messages(app, [holder for _, holder in suspects], timeout)
    lost = [
        _lost(lock, holder, older_than)
        for lock, holder in suspects
        if holder.task_id in answer.task_ids
    ]
    if not answer.trouble:
        return lost, ""
    left = f"Locks of queued messages that were left alone: {len(suspects) - len(lost)}"
    return lost, f"{left}. The reason: {answer.trouble}."


def _places(
    locks: Locks, queued_for: float
) -> tuple[list[tuple[LockInfo, Holder]], Collection[str | None]]:
    """The places that are old enough, and the ids of tasks that run or stand in line.

    A task that stands in line for its lock has begun, and yet keeps its place until it has it.
    """
    places: list[tuple[LockInfo, Holder]] = []
    at_work: set[str | None] = set()
    for lock in list_locks(locks):
        at_work.update(waiter.task_id for waiter in lock.waiters)
        for holder in lock.holders:
            if not holder.is_queued:
                at_work.add(holder.task_id)
            elif lock.as_of - _sent_at(holder) >= queued_for:
                places.append((lock, holder))
    return places, at_work


def _sent_at(holder: Holder) -> float:
    """About when its message was published.

    One that took another's place has its ``acquired_at``, but a time of its own. Of a retry the
    time is not kept; its message is sent before the place is taken, so it may be of any age.
    """
    return last_renewed(holder) if holder.retries < 0 else holder.acquired_at


def _lost(lock: LockInfo, holder: Holder, older_than: float | None) -> Stale:
    held_for = lock.as_of - holder.acquired_at
    is_old = older_than is not None and held_for > older_than
    return Stale(lock.name, without_message(holder), held_for, is_old)
