"""Is a holder alive? Judged by two witnesses: Celery's answer, and the renewals in the store.

A worker that does not answer need not be dead: one of the solo pool cannot answer while it works.
A renewal that is overdue alone need not mean it either. Both together are as certain as it gets
from outside; a worker that is cut off from broker and lock server looks the same and may still
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

# Renewals come every third of the ttl.
_OVERDUE = 0.5

_SENTENCES: dict[Verdict, str] = {
    "running": "Worker {worker} is alive and runs it{pid}.",
    "absent": "Worker {worker} is alive but does not run it: it has just ended, or was lost.",
    "silent": "Worker {worker} does not answer, but a renewal is not overdue yet.",
    "gone": "Worker {worker} does not answer and the lock was last renewed {ago:.0f} s ago, "
    "with a ttl of {ttl:g} s: it is dead or cut off.",
    "renewed": "Its renewal is not overdue; {unasked}.",
    "late": "It was last renewed {ago:.0f} s ago, with a ttl of {ttl:g} s, which is overdue; "
    "{unasked}.",
    "queued": "It is a message in the queue that no worker has begun.",
    "purged": "Its message is in no queue and with no worker: it was purged or lost.",
    "ended": "Its work has ended; the slot is kept for a while as at_least says.",
}


@dataclass(frozen=True, slots=True)
class Liveness:
    """What is known of one holder's life."""

    holder: Holder
    verdict: Verdict
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class Detail:
    """One lock with a verdict on each of its holders, in their order.

    ``usual_of`` says of each holder's task how long it usually takes, if that is known.
    """

    lock: LockInfo
    liveness: tuple[Liveness, ...]
    usual_of: Mapping[str, Usual] = field(default_factory=dict)

    @property
    def usual(self) -> Usual | None:
        """How long such a hold usually takes; of the first holder whose task is known."""
        known = (self.usual_of.get(holder.task or "") for holder in self.lock.holders)
        return next((usual for usual in known if usual), None)

    @property
    def likely_to_end_in(self) -> float | None:
        """Seconds until the first slot should come free; None if unknown, or overdue already."""
        left = [
            usual.held_for - (self.lock.as_of - holder.acquired_at)
            for holder in self.lock.holders
            if is_at_work(holder) and (usual := self.usual_of.get(holder.task or ""))
        ]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def as_dict(self) -> dict[str, Any]:
        said = self.lock.as_dict()
        said["usual"] = self.usual.as_dict() if self.usual else None
        said["likely_to_end_in"] = self.likely_to_end_in
        for holder, alive in zip(said["holders"], self.liveness, strict=True):
            holder["liveness"] = alive.as_dict()
        return said


def info(
    locks: Locks, name: str, app: Any = None, *, roll: ActiveReport | None = None
) -> Detail | None:
    """Who holds it, who waits, and (with an app) whether the holders live; None if it is free.

    ``roll`` is what the workers answered a moment ago; without it they are asked.
    """
    lock = locks.info(name)
    return examine(locks, lock, app, roll) if lock else None


def examine(
    locks: Locks, lock: LockInfo, app: Any = None, roll: ActiveReport | None = None
) -> Detail:
    if app is not None and roll is None:
        roll = ask_workers(app, [lock])
    liveness = tuple(judge(holder, lock.as_of, roll) for holder in lock.holders)
    return Detail(lock, liveness, usual_of(locks, lock))


def ask_workers(app: Any, locks: Iterable[LockInfo], *, arguments: bool = False) -> ActiveReport:
    """Ask the workers that hold these locks what they run."""
    workers = {holder.worker for lock in locks for holder in lock.holders if holder.worker}
    return inspect_active(app, workers, arguments=arguments)


def ask_again(app: Any, roll: ActiveReport, *, arguments: bool = False) -> ActiveReport:
    """The same roll, but workers that did not answer are asked once more: they may be busy."""
    silent = [worker for worker in roll.queried or () if not roll.answered(worker)]
    if roll.trouble or not silent:
        return roll
    return roll.merged(inspect_active(app, silent, arguments=arguments))


def judge(holder: Holder, as_of: float, roll: ActiveReport | None = None) -> Liveness:
    """The verdict on a holder as the store had it at ``as_of``, given what Celery answered."""
    asked, roll = roll, _valid_for(holder, as_of, roll)
    verdict = _verdict(holder, as_of, roll)
    pid = roll.running[holder.worker].get(holder.task_id or "") if _met(holder, roll) else None  # type: ignore[union-attr, index]
    elsewhere = f", but in pid {pid}" if pid and pid != holder.pid else f" in pid {pid}"
    sentence = _SENTENCES[verdict].format(
        worker=holder.worker,
        pid=elsewhere if pid else "",
        ago=as_of - last_renewed(holder),
        ttl=holder.ttl,
        unasked=_unasked(holder, roll or asked),
    )
    return Liveness(holder, verdict, sentence)


def verdict_of(holder: Holder, as_of: float, roll: ActiveReport | None = None) -> Verdict:
    """The verdict without its sentence, for lists of very many."""
    return _verdict(holder, as_of, _valid_for(holder, as_of, roll))


def _valid_for(holder: Holder, as_of: float, roll: ActiveReport | None) -> ActiveReport | None:
    """The roll, unless it says nothing about this holder.

    Its worker was not asked, or was asked before the holder had the lock. Or the worker does not
    run the task, but we saw the lock held before we asked: the task may have ended in between.
    """
    if roll is None or roll.at is None or roll.trouble or not holder.worker:
        return roll
    is_asked = roll.queried is None or holder.worker in roll.queried
    if not is_asked or holder.acquired_at >= roll.at:
        return None
    if not roll.answered(holder.worker) or holder.task_id in roll.running[holder.worker]:
        return roll
    return roll if as_of > roll.at + PATIENCE else None


def without_message(holder: Holder) -> Liveness:
    """The verdict on a place in the queue whose message was looked for and is nowhere."""
    return Liveness(holder, "purged", _SENTENCES["purged"])


def last_renewed(holder: Holder) -> float:
    """At the earliest when it was granted: a claim out of the queue is shorter than the ttl."""
    return max(holder.expires_at - holder.ttl, holder.acquired_at)


def is_overdue(holder: Holder, as_of: float) -> bool:
    """Whether a renewal should have come by then."""
    return as_of - last_renewed(holder) > holder.ttl * _OVERDUE


def _verdict(holder: Holder, as_of: float, roll: ActiveReport | None) -> Verdict:
    if holder.is_kept:
        return "ended"
    if holder.is_queued:
        return "queued"
    overdue = is_overdue(holder, as_of)
    if roll is None or roll.trouble or not holder.worker:
        return "late" if overdue else "renewed"
    if not _met(holder, roll):
        return "gone" if overdue else "silent"
    return "running" if holder.task_id in roll.running[holder.worker] else "absent"


def _met(holder: Holder, roll: ActiveReport | None) -> bool:
    return bool(roll and holder.worker and roll.answered(holder.worker))


def _unasked(holder: Holder, roll: ActiveReport | None) -> str:
    if not holder.worker:
        return "it is held by a plain process, about which Celery knows nothing"
    if roll is None:
        return "Celery was not asked about its worker"
    return roll.trouble or "its worker has not answered yet since it took the lock"
