"""Find locks whose holder may be dead or stuck, and release those that nobody will release.

Those are the locks of dead workers and of messages that are lost (``lost_reservations.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_locks.admin.actions import find_holders, force_release, trim
from celery_locks.admin.durations import Usual, is_at_work, usual
from celery_locks.admin.humanize import format_duration, format_ratio
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import SUSPECT, Liveness, judge, without_message
from celery_locks.admin.lost_reservations import find_lost_reservations
from celery_locks.admin.redelivery import Job, JobSearch
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport, inspect_active
from celery_locks.types import Holder, LockInfo

TIMES_USUAL = 10.0
"""A hold is reported if it takes this many times as long as its task's holds usually do."""
QUEUED_FOR = 60.0
"""The age in seconds from which the message of a reservation is searched: the reservation is made
before the publish, which may be retried."""
_UNKNOWN_WORKERS = "it is unknown which workers are alive"


@dataclass(frozen=True, slots=True)
class Stale:
    """A holder that an operator should look at, and the reason."""

    name: str
    liveness: Liveness
    held_for: float
    is_old: bool
    usual: Usual | None = None  # set if it has been held for many times as long

    @property
    def holder(self) -> Holder:
        return self.liveness.holder

    @property
    def sentence(self) -> str:
        if not (self.is_old or self.usual):
            return self.liveness.sentence
        age = f"It has been held for {format_duration(self.held_for)}"
        if self.usual:
            usual = self.usual.held_for
            age += f", {format_ratio(self.held_for, usual)} × the usual {format_duration(usual)}"
        return f"{age}. {self.liveness.sentence}"

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
    """The stale locks; ``inconclusive`` says why some could not be judged, usually ""."""

    inconclusive: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of ``sweep``.

    ``freed`` lost their lock; the workers of ``skipped`` do not answer, but may still renew.
    ``inconclusive`` says why reservations were left that may have lost their message, usually "".
    ``trimmed`` entries of the store, which nobody needed any more, were removed as well.
    ``jobs`` says what happens to the jobs of dead workers (``redelivery.py``).
    """

    freed: tuple[Stale, ...]
    skipped: tuple[Stale, ...]
    inconclusive: str = ""
    trimmed: int = 0
    jobs: tuple[Job, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "freed": [lock.as_dict() for lock in self.freed],
            "spared": [lock.as_dict() for lock in self.skipped],
            "doubt": self.inconclusive,
            "trimmed": self.trimmed,
            "jobs": [job.as_dict() for job in self.jobs],
        }


@dataclass(frozen=True, slots=True)
class SlowHolds:
    """Which holds take many times as long as usual; read once, not for every lock."""

    times: float = 0.0
    usual: Mapping[str, Usual] = field(default_factory=dict)

    def exceeded(self, holder: Holder, held_for: float) -> Usual | None:
        """Return the usual duration if this hold is far beyond it; one past hold is too few."""
        known = self.usual.get(holder.task or "") if is_at_work(holder) else None
        is_slow = known and known.holds > 1 and held_for > self.times * known.held_for
        return known if is_slow else None


_ANY_DURATION = SlowHolds()


def stale(
    locks: Locks,
    app: Any = None,
    older_than: float | None = None,
    timeout: float = PATIENCE,
    *,
    queued_for: float = QUEUED_FOR,
    times_usual: float | None = TIMES_USUAL,
) -> StaleLocks:
    """Find locks whose worker does not answer, run the task or renew, or that are held for long.

    Long is ``older_than`` seconds, or ``times_usual`` × what the task's holds usually take (None:
    any duration). Also find locks of messages that were published ``queued_for`` seconds ago and
    are lost. Without an app only the renewals count. A worker that does not answer is asked twice.
    The longest hold is first.
    """
    slow = SlowHolds(times_usual, usual(locks)) if times_usual is not None else _ANY_DURATION
    report, found = _find_suspects(locks, app, older_than, timeout, slow)
    trouble = (
        f"{_UNKNOWN_WORKERS.capitalize()}: {report.trouble}." if report and report.trouble else ""
    )
    purged, inconclusive = _without_message(locks, app, queued_for, timeout, older_than)
    known = {(lock.name, lock.holder.token) for lock in purged}
    others = [lock for lock in found if (lock.name, lock.holder.token) not in known]
    answer = StaleLocks(sorted(others + purged, key=lambda lock: -lock.held_for))
    answer.inconclusive = f"{trouble} {inconclusive}".strip()
    return answer


def _find_suspects(
    locks: Locks,
    app: Any,
    older_than: float | None,
    timeout: float,
    slow: SlowHolds = _ANY_DURATION,
) -> tuple[ActiveReport | None, list[Stale]]:
    report = inspect_active(app, timeout=timeout) if app is not None else None
    found = list(_suspects(locks, report, older_than, slow))
    silent = {lock.holder.worker for lock in found if lock.liveness.verdict in ("silent", "gone")}
    if report is None or not silent:
        return report, found
    report = report.merged(inspect_active(app, [name for name in silent if name], timeout))
    checked = (_check_again(locks, old, report, older_than, slow) for old in found)
    return report, [lock for lock in checked if lock]


def _suspects(
    locks: Locks, report: ActiveReport | None, older_than: float | None, slow: SlowHolds
) -> Iterator[Stale]:
    for lock in list_locks(locks):
        for holder in lock.holders:
            if suspect := _suspect(lock, holder, report, older_than, slow):
                yield suspect


def _suspect(
    lock: LockInfo,
    holder: Holder,
    report: ActiveReport | None,
    older_than: float | None,
    slow: SlowHolds,
) -> Stale | None:
    liveness = judge(holder, lock.as_of, report)
    held_for = lock.as_of - holder.acquired_at
    is_old = _is_old(held_for, older_than)
    exceeded = slow.exceeded(holder, held_for)
    if liveness.verdict in SUSPECT or is_old or exceeded:
        return Stale(lock.name, liveness, held_for, is_old, exceeded)
    return None


def _check_again(
    locks: Locks, old: Stale, report: ActiveReport, older_than: float | None, slow: SlowHolds
) -> Stale | None:
    """Judge the same holder as it is now; None if it released the lock, or is alive."""
    lock = locks.info(old.name)
    for holder in lock.holders if lock else ():
        if lock and holder.token == old.holder.token:
            return _suspect(lock, holder, report, older_than, slow)
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
    """Release the locks of dead workers and of lost messages, and trim the store.

    A worker is dead if it does not answer twice and its renewal is overdue. ``wait`` is how many
    seconds to wait for the second where only the first is true. Other locks of a dead worker lapse
    by themselves. Messages are searched from ``queued_for`` seconds after their publish on. With
    ``restore`` the unacknowledged messages of dead workers are put back into their queues, under
    the conditions in ``redelivery.py`` (Redis brokers only).
    """
    ends = time.monotonic() + wait
    while True:
        found = _of_silent_workers(locks, app, timeout)
        gone = [lock for lock in found if lock.liveness.verdict == "gone"]
        skipped = [lock for lock in found if lock.liveness.verdict != "gone"]
        if not skipped or time.monotonic() >= ends:
            break
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
    # Now, before the queues are searched: that takes time, in which a worker may come back.
    freed = [lock for lock in gone if dry_run or _release(locks, lock, by)]
    purged, inconclusive = _without_message(locks, app, queued_for, timeout)
    freed += [lock for lock in purged if dry_run or _release(locks, lock, by)]
    trimmed = trim(locks, dry_run=dry_run)
    dead = [lock.holder for lock in freed if lock.liveness.verdict == "gone"]
    jobs, why_not = JobSearch(app, timeout, restore, dry_run).jobs(locks, dead)
    inconclusive = f"{inconclusive} {why_not}".strip()
    return Swept(tuple(freed), tuple(skipped), inconclusive, trimmed, tuple(jobs))


def _of_silent_workers(locks: Locks, app: Any, timeout: float) -> list[Stale]:
    report, found = _find_suspects(locks, app, None, timeout)
    if report and report.trouble:
        raise LockUnavailable(f"{_UNKNOWN_WORKERS}: {report.trouble}")
    return [lock for lock in found if lock.liveness.verdict in ("silent", "gone")]


def _release(locks: Locks, lock: Stale, by: str) -> bool:
    """Release the lock unless it was renewed since it was judged."""
    judged, now = lock.holder, find_holders(locks, lock.name, lock.holder.token)
    if judged.expires_at not in [holder.expires_at for holder in now]:
        return False
    reason = f"swept: {lock.liveness.sentence}"
    return bool(force_release(locks, lock.name, judged.token, reason=reason, by=by))


def _without_message(
    locks: Locks, app: Any, queued_for: float, timeout: float, older_than: float | None = None
) -> tuple[list[Stale], str]:
    lost, inconclusive = find_lost_reservations(locks, app, queued_for, timeout)
    found = [
        Stale(lock.name, without_message(holder), held_for, _is_old(held_for, older_than))
        for lock, holder in lost
        for held_for in [lock.as_of - holder.acquired_at]
    ]
    return found, inconclusive


def _is_old(held_for: float, older_than: float | None) -> bool:
    return older_than is not None and held_for > older_than
