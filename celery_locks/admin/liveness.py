"""Whether a holder is alive, by two witnesses: Celery's answer, and the renewals in the store.

A worker that does not answer need not be dead: the solo pool cannot answer while it runs a task.
An overdue renewal alone does not prove it either. Both together are as certain as it gets from
outside. A worker that is cut off from the broker and the lock server looks the same and may still
write, which is what fences are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from celery_locks.admin.durations import Usual, is_at_work, usual_of
from celery_locks.core.locks import Locks
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport, inspect_active
from celery_locks.types import Holder, LockInfo

Verdict = Literal[
    "running", "absent", "silent", "gone", "renewed", "late", "queued", "purged", "ended"
]

SUSPECT: tuple[Verdict, ...] = ("absent", "silent", "gone", "late")
"""The verdicts on a holder that an operator should look at."""

# The part of the ttl after which a renewal is overdue.
_OVERDUE = 0.5

_SENTENCES: dict[Verdict, str] = {
    "running": "Worker {worker} is alive and runs it{pid}.",
    "absent": "Worker {worker} is alive but does not run it: it has just ended, or it was lost.",
    "silent": "Worker {worker} does not answer, but its renewal is not overdue yet.",
    "gone": "Worker {worker} does not answer and the lock was last renewed {ago:.0f} s ago, "
    "with a ttl of {ttl:g} s: it is dead or cut off.",
    "renewed": "Its renewal is not overdue; {unknown}.",
    "late": "It was last renewed {ago:.0f} s ago, with a ttl of {ttl:g} s, which is overdue; "
    "{unknown}.",
    "queued": "It is a message in the queue that no worker has started.",
    "purged": "Its message is in no queue and with no worker: it was purged or lost.",
    "ended": "Its work has ended; the slot stays taken for the time that at_least sets.",
}


@dataclass(frozen=True, slots=True)
class Liveness:
    """The verdict on one holder."""

    holder: Holder
    verdict: Verdict
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class Detail:
    """One lock with a verdict on each of its holders, in their order.

    ``usual_of`` has the usual duration of each holder's task, if it is known.
    """

    lock: LockInfo
    liveness: tuple[Liveness, ...]
    usual_of: Mapping[str, Usual] = field(default_factory=dict)

    def liveness_of(self, token: str) -> Liveness | None:
        """Return the verdict on the holder with ``token``; None if it no longer has the lock."""
        return next((alive for alive in self.liveness if alive.holder.token == token), None)

    @property
    def usual(self) -> Usual | None:
        """The usual duration of the first holder whose task is known."""
        known = (self.usual_of.get(holder.task or "") for holder in self.lock.holders)
        return next((usual for usual in known if usual), None)

    @property
    def likely_to_end_in(self) -> float | None:
        """Seconds until the first slot should be free; None if unknown, or already overdue."""
        left = [
            usual.held_for - (self.lock.as_of - holder.acquired_at)
            for holder in self.lock.holders
            if is_at_work(holder) and (usual := self.usual_of.get(holder.task or ""))
        ]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def as_dict(self) -> dict[str, Any]:
        fields = self.lock.as_dict()
        fields["usual"] = self.usual.as_dict() if self.usual else None
        fields["likely_to_end_in"] = self.likely_to_end_in
        for holder, alive in zip(fields["holders"], self.liveness, strict=True):
            holder["liveness"] = alive.as_dict()
        return fields


def info(
    locks: Locks, name: str, app: Any = None, *, report: ActiveReport | None = None
) -> Detail | None:
    """Return a lock with its holders, waiters and verdicts; None if it is free.

    ``report`` is what the workers answered a moment ago; without it they are asked, if there is an
    app.
    """
    lock = locks.info(name)
    return examine(locks, lock, app, report) if lock else None


def examine(
    locks: Locks, lock: LockInfo, app: Any = None, report: ActiveReport | None = None
) -> Detail:
    """Judge the holders of a lock that was just read."""
    if app is not None and report is None:
        report = ask_workers(app, [lock])
    liveness = tuple(judge(holder, lock.as_of, report) for holder in lock.holders)
    return Detail(lock, liveness, usual_of(locks, lock))


def ask_workers(app: Any, locks: Iterable[LockInfo], *, arguments: bool = False) -> ActiveReport:
    """Ask the workers that hold these locks what they run."""
    workers = {holder.worker for lock in locks for holder in lock.holders if holder.worker}
    return inspect_active(app, workers, arguments=arguments)


def ask_again(app: Any, report: ActiveReport, *, arguments: bool = False) -> ActiveReport:
    """Ask the workers that did not answer once more, as they may be busy; return both answers."""
    silent = [worker for worker in report.asked or () if not report.answered(worker)]
    if report.trouble or not silent:
        return report
    return report.merged(inspect_active(app, silent, arguments=arguments))


def judge(holder: Holder, as_of: float, report: ActiveReport | None = None) -> Liveness:
    """Judge a holder as the store had it at ``as_of``, given what Celery answered."""
    given, report = report, _valid_for(holder, as_of, report)
    verdict = _verdict(holder, as_of, report)
    pid = None
    if report and holder.worker and report.answered(holder.worker):
        pid = report.running[holder.worker].get(holder.task_id or "")
    elsewhere = f", but in pid {pid}" if pid and pid != holder.pid else f" in pid {pid}"
    sentence = _SENTENCES[verdict].format(
        worker=holder.worker,
        pid=elsewhere if pid else "",
        ago=as_of - last_renewed(holder),
        ttl=holder.ttl,
        unknown=_why_unknown(holder, report or given),
    )
    return Liveness(holder, verdict, sentence)


def verdict_of(holder: Holder, as_of: float, report: ActiveReport | None = None) -> Verdict:
    """Return the verdict without its sentence, for long lists."""
    return _verdict(holder, as_of, _valid_for(holder, as_of, report))


def _valid_for(holder: Holder, as_of: float, report: ActiveReport | None) -> ActiveReport | None:
    """Return the report, or None if it says nothing about this holder.

    Then its worker was not asked, or was asked before the holder had the lock. Or the worker does
    not run the task, but we read the lock before we asked: the task may have ended in between.
    """
    if report is None or report.at is None or report.trouble or not holder.worker:
        return report
    is_asked = report.asked is None or holder.worker in report.asked
    if not is_asked or holder.acquired_at >= report.at:
        return None
    if not report.answered(holder.worker) or holder.task_id in report.running[holder.worker]:
        return report
    return report if as_of > report.at + PATIENCE else None


def without_message(holder: Holder) -> Liveness:
    """Return the verdict on a reservation whose message is in no queue and with no worker."""
    return Liveness(holder, "purged", _SENTENCES["purged"])


def last_renewed(holder: Holder) -> float:
    """Return when it was renewed or granted: a claim after a hand-over is shorter than the ttl."""
    return max(holder.expires_at - holder.ttl, holder.acquired_at)


def is_overdue(holder: Holder, as_of: float) -> bool:
    """Whether a renewal was due before ``as_of``; renewals come every third of the ttl."""
    return as_of - last_renewed(holder) > holder.ttl * _OVERDUE


def _verdict(holder: Holder, as_of: float, report: ActiveReport | None) -> Verdict:
    if holder.is_kept:
        return "ended"
    if holder.is_queued:
        return "queued"
    overdue = is_overdue(holder, as_of)
    if report is None or report.trouble or not holder.worker:
        return "late" if overdue else "renewed"
    if not report.answered(holder.worker):
        return "gone" if overdue else "silent"
    return "running" if holder.task_id in report.running[holder.worker] else "absent"


def _why_unknown(holder: Holder, report: ActiveReport | None) -> str:
    if not holder.worker:
        return "it is held by a plain process, which Celery does not know"
    if report is None:
        return "Celery was not asked about its worker"
    return report.trouble or "its worker has not answered since it acquired the lock"
