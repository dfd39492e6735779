"""The job of a worker that died: does its message come back, when, and can it come back now?

A freed lock says nothing about the job. A task with ``acks_late`` leaves an unacknowledged message
in the broker: RabbitMQ delivers it again when the dead worker's connection closes, Redis after the
visibility timeout (an hour by default). Without ``acks_late`` the message was acknowledged before
the task began, and nobody will run it again.

On Redis a message is restored at once, on request, only if all of this holds:

- the task's lock was swept here, or lapsed, or was taken while its renewal was overdue;
- the message is unacknowledged, and was not delivered again after that lock's last renewal ran out;
- no worker has the task: all were asked after the message was read, and twice if the one that held
  the lock did not answer;
- nobody has touched the message since it was read, which is checked in the step that moves it.

If that worker is not dead but cut off, its run goes on beside the new one, as it would after the
visibility timeout; fences tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_locks.admin.actions import history
from celery_locks.admin.explain import ENDED_STATES, format_duration
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import is_overdue
from celery_locks.core.locks import Locks
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.integration.redis_broker import Inconclusive, RedisBroker, Unacked, open_broker
from celery_locks.integration.worker_inspection import inspect_messages, outcome
from celery_locks.types import Holder

Fate = Literal["returns", "restored", "taken", "ended", "lost", "unknown"]

_RABBITMQ = (
    "RabbitMQ delivers its message again by itself when the dead worker's connection closes: at "
    "once if its process died, after some missed heartbeats if its machine did."
)
_ACKNOWLEDGED = (
    "its message was acknowledged before the task began (acks_late is off), so nobody will run it "
    "again. Send it again if it must run."
)
_NOWHERE = (
    "its message is in no queue and with no worker, so nobody will run it again. Send it again if "
    "it must run."
)
_PAST_ACTS = ("lapsed", "force_release")
_ALL = 1_000_000  # the history itself is bounded


@dataclass(frozen=True, slots=True)
class Job:
    """What happens to the job of a task whose worker died holding a lock.

    "returns": its message comes back by itself, in ``returns_in`` seconds if that is known.
    "restored": it was put back into its queue. "taken": a queue or another worker has it already.
    "ended": its result is there. "lost": nobody will run it again.
    """

    holder: Holder
    fate: Fate
    what: str
    returns_in: float | None = None

    @property
    def sentence(self) -> str:
        return f"Task {self.holder.task or ''}[{self.holder.task_id}]: {self.what}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "task_id": self.holder.task_id,
            "task": self.holder.task,
            "fate": self.fate,
            "sentence": self.sentence,
            "returns_in": self.returns_in,
        }


@dataclass(frozen=True, slots=True)
class JobSearch:
    """Finds the messages of dead workers' jobs; with ``restore`` it puts them back at once."""

    app: Any
    timeout: float
    restore: bool = False
    dry_run: bool = False

    def jobs(self, locks: Locks, freed: Sequence[Holder]) -> tuple[list[Job], str]:
        """Of the holders whose lock was just freed, and of those that lost theirs before.

        And, if they could not be looked for, a sentence that says why.
        """
        with self.app.connection_for_read() as connection:
            kind = connection.transport.driver_type
        freed = [holder for holder in freed if holder.task_id]
        if kind != "redis":
            return [self._of_other_broker(holder, kind) for holder in freed], ""
        past = list(_lost_before(locks, {holder.task_id for holder in freed}))
        try:
            return self._of_redis(freed, past) if freed or past else [], ""
        except Inconclusive as doubt:
            is_asked = freed or self.restore
            return [], f"The jobs of dead workers were not looked for: {doubt}." if is_asked else ""

    def _of_other_broker(self, holder: Holder, kind: str) -> Job:
        task = self.app.tasks.get(holder.task or "")
        if task is not None and not task.acks_late:
            return Job(holder, "lost", _ACKNOWLEDGED)
        if kind != "amqp":
            return _unknown(holder, f"a broker of type {kind!r} cannot be asked")
        return Job(holder, "returns", _RABBITMQ if task else f"if it has acks_late: {_RABBITMQ}")

    def _of_redis(self, freed: Sequence[Holder], past: Sequence[Holder]) -> list[Job]:
        holders = [*freed, *past]
        with open_broker(self.app, self.timeout) as broker:
            unacked = broker.unacked(str(holder.task_id) for holder in holders)
            found = [holder for holder in holders if holder.task_id in unacked]
            # After the broker: whoever has it by now says so, or has touched the message.
            taken = self._with_workers(found)
            jobs = [
                self._of_unacked(broker, holder, unacked[str(holder.task_id)])
                for holder in found
                if holder.task_id not in taken
            ]
        known = {job.holder.task_id for job in jobs}
        return jobs + self._of_others([one for one in freed if one.task_id not in known])

    def _with_workers(self, holders: Sequence[Holder]) -> frozenset[str]:
        """Which of their tasks a worker has; asked twice if one of their own does not answer."""
        found: frozenset[str] = frozenset()
        for _ in range(2 if holders else 0):
            stock = inspect_messages(
                self.app, [str(holder.task_id) for holder in holders], self.timeout
            )
            if stock.trouble:
                raise Inconclusive(stock.trouble)
            found |= stock.task_ids
            if all(holder.worker in stock.queues for holder in holders):
                break
        return found

    def _of_unacked(self, broker: RedisBroker, holder: Holder, found: list[Unacked]) -> Job:
        returns_in = max(message.returns_in for message in found)
        when = f"is delivered again in about {format_duration(returns_in)} (visibility_timeout)"
        if len(found) > 1:
            what = (
                f"it has {len(found)} messages that are unacknowledged; each {when} at the latest."
            )
            return Job(holder, "returns", what, returns_in)
        if found[0].delivered_at > holder.expires_at:
            what = (
                f"its message was delivered to a worker since; if that one is dead too, it {when}."
            )
            return Job(holder, "returns", what, returns_in)
        if self.restore:
            return self._restored(broker, holder, found[0])
        what = f"its message is unacknowledged and {when}. `sweep --restore` delivers it now."
        return Job(holder, "returns", what, returns_in)

    def _restored(self, broker: RedisBroker, holder: Holder, message: Unacked) -> Job:
        if self.dry_run:
            what = "its message would be put back into its queue."
            return Job(holder, "returns", what, message.returns_in)
        try:
            queues = broker.restore(message)
        except Inconclusive as doubt:  # the others may have been restored
            return Job(holder, "unknown", f"whether its message was put back is unknown: {doubt}.")
        if not queues:
            return Job(holder, "taken", "its message was acknowledged or delivered just now.")
        names = " and ".join(map(repr, queues))
        what = f"its message is back in queue {names}; the next free worker runs it."
        return Job(holder, "restored", what)

    def _of_others(self, holders: Sequence[Holder]) -> list[Job]:
        """Those that have no unacknowledged message, or one that a worker has."""
        answer = find_lost_messages(self.app, holders, self.timeout)
        return [self._of_other(h, h.task_id in answer.task_ids, answer.trouble) for h in holders]

    def _of_other(self, holder: Holder, is_absent: bool, trouble: str) -> Job:
        state, _ = outcome(self.app, str(holder.task_id))
        if state in ENDED_STATES:
            return Job(holder, "ended", f"it has ended: its result says {state}.")
        if is_absent:
            task = self.app.tasks.get(holder.task or "")
            is_early = task is not None and not task.acks_late
            return Job(holder, "lost", _ACKNOWLEDGED if is_early else _NOWHERE)
        if trouble:
            return _unknown(holder, trouble)
        return Job(holder, "taken", "a queue or a worker has its message: it will run.")


def _unknown(holder: Holder, why: str) -> Job:
    return Job(holder, "unknown", f"nobody knows what happens to its message: {why}.")


def _lost_before(locks: Locks, known: set[str | None]) -> Iterator[Holder]:
    """Holders whose lock lapsed, or was taken when its renewal was overdue; by the history.

    The last hold of a task counts, and not that of a task which holds a lock now, or waits for one.
    """
    seen = {*known, None}
    for lock in list_locks(locks):
        seen.update(one.task_id for one in lock.holders + lock.waiters)
    for act in history(locks, limit=_ALL):
        ended = [holder for holder in act.holders if holder.task_id not in seen]
        seen.update(holder.task_id for holder in ended)
        if act.act in _PAST_ACTS:
            yield from (one for one in ended if one.worker and is_overdue(one, act.at))
