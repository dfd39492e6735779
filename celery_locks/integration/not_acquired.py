"""What Celery is told when a task does not get its lock, and so does not run."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore
from celery.states import READY_STATES
from kombu.exceptions import OperationalError

from celery_locks import events, policy
from celery_locks.errors import AlreadyDone, LockConflict, LockUnavailable
from celery_locks.policy import Decision, Situation
from celery_locks.store.commands.locks import Done, Renewal, budget_of, ended_mark
from celery_locks.text import printable
from celery_locks.types import Conflict

if TYPE_CHECKING:
    from celery_locks.integration.execution import Execution

logger = logging.getLogger("celery_locks")


class NotAcquired:
    """An execution that has not got the lock ``name``: its result, or what is raised instead."""

    def __init__(self, execution: Execution, name: str) -> None:
        self.execution = execution
        self.name = name
        self.task = execution.task
        self.request = execution.request
        self.header = execution.header
        self.options = execution.options

    def conflict(self, conflict: Conflict) -> dict[str, Any]:
        """Others hold it."""
        self.header = replace(self.header, refused=None)
        decision = policy.on_conflict(conflict, self.options, self._situation())
        if decision.kind == "requeue":
            self._stay_in_queue(decision.pause)
            self._requeue(decision)
        self.execution.release_reservation()
        if decision.kind == "skip":
            return self._skip(conflict)
        raise LockConflict(conflict)

    def unavailable(self, error: LockUnavailable) -> None:
        """Nobody knows who holds it; returns if the task is to run all the same."""
        since = (self.header.refused or time.time()) if error.is_permanent else None
        self.header = replace(self.header, refused=since)
        refused_for = None if since is None else max(0.0, time.time() - since)
        situation = replace(self._situation(), refused_for=refused_for)
        decision = policy.on_unavailable(self.options, situation)
        if decision.kind == "requeue":
            self._requeue(decision)
        self.execution.release_reservation()
        if decision.kind != "run":
            raise error
        self._tell("unlocked", does="runs", why=str(error))

    def done(self, answer: Done) -> Any:
        """There is nothing left to do."""
        if answer.mark:
            return self._repeat(answer.mark)
        return self._drop_copy(answer)

    def _repeat(self, mark: str) -> Any:
        """The work of this lock is done (``once``): its result, or word that there is none."""
        assert self.execution.once is not None
        repeat = self.execution.once.repeat(mark)
        self._tell("already_done", why=f"does not run: {repeat.reason}")
        self._send_event("task-skipped", lock=self.name, reason=repeat.reason)
        self.execution.release_reservation()
        if not repeat.has_result and self._situation().has_followers:
            raise AlreadyDone(self.name, repeat.reason)  # the next link would be run on that value
        return repeat.value

    def _drop_copy(self, answer: Done) -> None:
        """A copy of this message has run to its end, or another message took its place."""
        task, request = self.task, self.request
        # The run that ended has seen to the place of this message: a retry may have it.
        self.execution.owns_reservation = False
        if answer.is_being_replaced:
            self._requeue(policy.on_done(self._situation()))
        ignored = request.ignore_result or task.ignore_result
        if answer.leaves_result and _is_readable(task.backend) and not ignored:
            state = task.AsyncResult(request.id).state
            if state not in READY_STATES and answer.was_replaced:
                task.backend.mark_as_revoked(request.id, "replaced", store_result=True)
            elif state not in READY_STATES:
                self._await_result()
        self._tell("already_done", why="has run already: this copy is dropped")
        raise Ignore("a copy of this message has run")

    def _await_result(self) -> None:
        """The run that ended is about to store its result, or died before it could.

        Who says nothing for a ttl counts as dead here as everywhere: then this copy is to run.
        """
        decision = policy.on_done(self._situation())
        if self.header.unseen is None:
            self.header = replace(self.header, unseen=time.time())
        if time.time() - (self.header.unseen or 0.0) > self.options.ttl:
            locks = self.execution.locks
            lapsed = ended_mark(self.execution.holder, ttl=0.001)
            with suppress(LockUnavailable):  # it comes again, and tries again
                locks.perform(locks.commands.release(self.name, "", marks=[lapsed]))
                decision = replace(decision, pause=0.0)
        self._requeue(decision)

    def _situation(self) -> Situation:
        request = self.request
        has_message = not (request.called_directly or request.is_eager or self.execution.within)
        return Situation(
            task_id=request.id,
            attempt=self.execution.holder.attempt,
            has_followers=bool(request.chain or request.callbacks),
            can_requeue=has_message,
            times_requeued=self.header.times,
            patience_used=self._patience_used(),
            longest_pause=self._longest_pause(),
            had_reservation=bool(self.execution.queued()[1]),
        )

    def _patience_used(self) -> float:
        since = self.header.since
        return 0.0 if since is None else max(0.0, time.time() - since)

    def _longest_pause(self) -> float:
        """A delayed message must come before its visibility timeout makes copies of it."""
        transport = self.task.app.conf.broker_transport_options or {}
        return float(transport.get("visibility_timeout", 3600)) / 4

    def _skip(self, conflict: Conflict) -> dict[str, Any]:
        holder = conflict.holders[0].as_public_dict() if conflict.holders else None
        self._tell("skipped", conflict=conflict)
        self._send_event("task-skipped", lock=self.name, holder=holder)
        return {"skipped": True, "lock": self.name, "holder": holder}

    def _tell(self, kind: events.EventKind, **detail: Any) -> None:
        token = self.execution.token
        events.emit(kind, self.name, token, task=self.task.name, task_id=self.request.id, **detail)

    def _send_event(self, kind: str, **fields: Any) -> None:
        if self.request.called_directly or self.request.is_eager:
            return
        try:
            self.task.send_event(kind, **fields)
        except Exception as error:  # noqa: BLE001 (an event is not worth a task)
            logger.warning("the event %s could not be sent: %s", kind, printable(str(error)))

    def _requeue(self, decision: Decision) -> None:
        """Publish the same message again, later; retries untouched, canvas intact, slot freed."""
        headers = self.header.requeued(time.time()).write(self.request.headers)
        again = self.task.signature_from_request(
            self.request, retries=self.request.retries, countdown=decision.pause, headers=headers
        )
        self._publish(again)
        self.execution.owns_reservation = False
        self._tell("requeued", pause=decision.pause, why=decision.why)
        raise Ignore(decision.why)

    def _publish(self, again: Any) -> None:
        """Until it succeeds: if the message is acknowledged already, nobody else has the job."""
        while True:
            try:
                again.apply_async()
            except OperationalError as error:
                logger.warning(
                    "task %s[%s] cannot be put back now and is tried again: %s (lock %r)",
                    self.task.name,
                    printable(str(self.request.id)),
                    printable(str(error)),
                    self.name,
                )
                time.sleep(0.5)
            else:
                return

    def _stay_in_queue(self, pause: float) -> None:
        """The message goes on, and its place with it: as long again as for a new one."""
        name, token = self.execution.queued()
        if token:
            locks = self.execution.locks
            renewal = Renewal(name, token, pause + self.options.pending_ttl)
            with suppress(LockUnavailable):
                locks.perform(locks.commands.renew([renewal], budget_of(self.options.ttl)))


def _is_readable(backend: Any) -> bool:
    """Whether a result can be seen here: those of ``rpc`` go to the caller and to nobody else."""
    is_for_caller = type(backend).__module__ == "celery.backends.rpc"
    return not (is_for_caller or isinstance(backend, DisabledBackend))
