"""What happens to the jobs of dead workers: whether and when their messages are delivered again.

Releasing the lock does not run the job again. A task with ``acks_late`` leaves an unacknowledged
message in the broker: RabbitMQ delivers it again when the dead worker's connection closes, Redis
after the visibility timeout (an hour by default). Without ``acks_late`` the message was
acknowledged before the task started, and nobody will run it again.

On Redis a message is restored at once, on request, only if all of this is true:

- the task's lock was swept here, or lapsed, or was taken while its renewal was overdue;
- the message is unacknowledged, and was not delivered again after that lock's last renewal ran out;
- no worker has the task: all are asked after the message is read, and twice if the one that held
  the lock does not answer;
- the message has not changed since it was read, which is checked in the step that moves it.

If that worker is not dead but cut off, its run continues beside the new one, as it would after the
visibility timeout; fences tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_locks.admin.explain import ENDED_STATES
from celery_locks.admin.history import history
from celery_locks.admin.humanize import format_duration
from celery_locks.admin.listing import list_lapsed, list_locks
from celery_locks.admin.liveness import is_overdue
from celery_locks.core.locks import Locks
from celery_locks.integration.broker_messages import Inconclusive, RedisBroker, Unacked, open_broker
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.integration.worker_inspection import inspect_messages, outcome
from celery_locks.types import Holder

Fate = Literal["returns", "restored", "taken", "ended", "lost", "unknown"]

_RABBITMQ = (
    "RabbitMQ delivers its message again when the dead worker's connection closes: at once if the "
    "process died, after some missed heartbeats if the machine did."
)
_ACKNOWLEDGED = (
    "its message was acknowledged before the task started (acks_late is off), so nobody will run "
    "it again. Send it again if it must run."
)
_NOWHERE = (
    "its message is in no queue and with no worker, so nobody will run it again. Send it again if "
    "it must run."
)
_LOSSES = ("lapsed", "force_release")
_ALL = 1_000_000  # the history itself is bounded


@dataclass(frozen=True, slots=True)
class Job:
    """What happens to the job of a task whose worker died holding a lock.

    "returns": its message is delivered again, in ``returns_in`` seconds if that is known.
    "restored": it was put back into its queue. "taken": a queue or another worker has it already.
    "ended": its result exists. "lost": nobody will run it again.
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
        """Return the jobs of the holders whose lock was just released, or was lost before.

        Also return a sentence that says why they could not be searched; usually "".
        """
        with self.app.connection_for_read() as connection:
            kind = connection.transport.driver_type
        freed = [holder for holder in freed if holder.task_id]
        if kind != "redis":
            return [self._of_other_broker(holder, kind) for holder in freed], ""
        past = list(_lost_before(locks, {holder.task_id for holder in freed}))
        try:
            return self._of_redis(freed, past) if freed or past else [], ""
        except Inconclusive as error:
            is_wanted = freed or self.restore
            return (
                [],
                f"Could not search for the jobs of dead workers: {error}." if is_wanted else "",
            )

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
            # Ask after the broker was read: a worker that has it by now reports it, or changed it.
            taken = self._with_workers(found)
            jobs = [
                self._of_unacked(broker, holder, unacked[str(holder.task_id)])
                for holder in found
                if holder.task_id not in taken
            ]
        known = {job.holder.task_id for job in jobs}
        return jobs + self._of_others([h for h in freed if h.task_id not in known])

    def _with_workers(self, holders: Sequence[Holder]) -> frozenset[str]:
        """Return the tasks that workers have; ask twice if a holder's own worker is silent."""
        found: frozenset[str] = frozenset()
        for _ in range(2 if holders else 0):
            report = inspect_messages(
                self.app, [str(holder.task_id) for holder in holders], self.timeout
            )
            if report.trouble:
                raise Inconclusive(report.trouble)
            found |= report.task_ids
            if all(holder.worker in report.queues for holder in holders):
                break
        return found

    def _of_unacked(self, broker: RedisBroker, holder: Holder, found: list[Unacked]) -> Job:
        returns_in = max(message.returns_in for message in found)
        when = f"is delivered again in about {format_duration(returns_in)} (visibility_timeout)"
        if len(found) > 1:
            what = f"it has {len(found)} unacknowledged messages; each {when} at the latest."
            return Job(holder, "returns", what, returns_in)
        if found[0].delivered_at > holder.expires_at:
            what = f"its message was delivered to a worker since; if that is dead too, it {when}."
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
        except Inconclusive as error:  # the others may have been restored
            return Job(
                holder, "unknown", f"it is unknown whether its message was restored: {error}."
            )
        if not queues:
            return Job(holder, "taken", "its message has just been acknowledged or delivered.")
        names = " and ".join(map(repr, queues))
        what = f"its message is back in queue {names}; the next free worker runs it."
        return Job(holder, "restored", what)

    def _of_others(self, holders: Sequence[Holder]) -> list[Job]:
        """Return the jobs that have no unacknowledged message, or one that a worker has."""
        answer = find_lost_messages(self.app, holders, self.timeout)
        return [self._of_other(h, h.task_id in answer.task_ids, answer.trouble) for h in holders]

    def _of_other(self, holder: Holder, is_absent: bool, trouble: str) -> Job:
        state, _ = outcome(self.app, str(holder.task_id))
        if state in ENDED_STATES:
            return Job(holder, "ended", f"it has ended: its result is {state}.")
        if is_absent:
            task = self.app.tasks.get(holder.task or "")
            is_early = task is not None and not task.acks_late
            return Job(holder, "lost", _ACKNOWLEDGED if is_early else _NOWHERE)
        if trouble:
            return _unknown(holder, trouble)
        return Job(holder, "taken", "a queue or a worker has its message: it will run.")


def _unknown(holder: Holder, why: str) -> Job:
    return Job(holder, "unknown", f"it is unknown what happens to its message: {why}.")


def _lost_before(locks: Locks, known: set[str | None]) -> Iterator[Holder]:
    """Find holders whose lock lapsed, or was taken when its renewal was overdue.

    A lapse is recorded in the history with the next acquire, or after a minute; until then the
    holder is still listed. Only the last hold of a task counts, and only if the task neither holds
    nor waits for a lock.
    """
    seen = {*known, None}
    for lock in list_locks(locks):
        seen.update(holder.task_id for holder in lock.holders + lock.waiters)
    for lock in list_lapsed(locks):
        lapsed = [holder for holder in lock.holders if holder.task_id not in seen]
        seen.update(holder.task_id for holder in lapsed)
        yield from (holder for holder in lapsed if holder.worker and not holder.is_queued)
    for entry in history(locks, limit=_ALL):
        ended = [holder for holder in entry.holders if holder.task_id not in seen]
        seen.update(holder.task_id for holder in ended)
        if entry.act in _LOSSES:
            yield from (h for h in ended if h.worker and is_overdue(h, entry.at))
