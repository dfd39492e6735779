"""The outcome of a task that does not acquire its lock: skip, raise, requeue or run unlocked."""

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
from celery_locks.integration.internals import sends_results_to_caller
from celery_locks.policy import Decision, Situation
from celery_locks.printable_text import printable
from celery_locks.store.commands.locks import budget_of
from celery_locks.store.commands.replies import Ended
from celery_locks.store.commands.requests import ended_mark
from celery_locks.types import Conflict

if TYPE_CHECKING:
    from celery_locks.integration.execution import Execution

logger = logging.getLogger("celery_locks")


class NotAcquired:
    """An execution that has not acquired the lock ``name``: returns its result, or raises."""

    def __init__(self, execution: Execution, name: str) -> None:
        self.execution = execution
        self.name = name
        self.task = execution.task
        self.request = execution.request
        self.header = execution.header
        self.options = execution.options
        self.reservation = execution.reservation

    def on_conflict(self, conflict: Conflict) -> dict[str, Any]:
        """Apply the policy for a lock that others hold."""
        self.header = replace(self.header, refused=None)
        decision = policy.on_conflict(conflict, self.options, self._situation())
        if decision.kind == "requeue":
            seconds = decision.pause + self.options.pending_ttl
            self.reservation.extend(seconds, budget_of(self.options.ttl))
            self._requeue(decision)
        self.reservation.release()
        if decision.kind == "skip":
            return self._skip(conflict)
        raise LockConflict(conflict)

    def on_unavailable(self, error: LockUnavailable) -> None:
        """Apply the policy for an unavailable server; returns if the task runs unlocked."""
        since = (self.header.refused or time.time()) if error.is_permanent else None
        self.header = replace(self.header, refused=since)
        refused_for = None if since is None else max(0.0, time.time() - since)
        situation = replace(self._situation(), refused_for=refused_for)
        decision = policy.on_unavailable(self.options, situation)
        if decision.kind == "requeue":
            self._requeue(decision)
        self.reservation.release()
        if decision.kind != "run":
            raise error
        self._emit("unlocked", does="runs", why=str(error))

    def on_completed(self, mark: str) -> Any:
        """Return the saved result of completed work (``once``), or a value that stands for none."""
        assert self.execution.once is not None
        repeat = self.execution.once.repeat(mark)
        self._emit("already_done", why=f"does not run: {repeat.reason}")
        self._send_event("task-skipped", lock=self.name, reason=repeat.reason)
        self.reservation.release()
        if not repeat.has_result and self._situation().has_followers:
            raise AlreadyDone(self.name, repeat.reason)  # the next link would get that value
        return repeat.value

    def on_ended(self, answer: Ended) -> None:
        """Drop a copy of a message that has run to its end or that another one replaced."""
        task, request = self.task, self.request
        # The run that ended has handled the reservation: a retry may have it now.
        self.reservation.pass_on()
        if answer.is_being_replaced:
            self._requeue(policy.on_done(self._situation()))
        ignored = request.ignore_result or task.ignore_result
        if answer.leaves_result and _is_readable(task.backend) and not ignored:
            state = task.AsyncResult(request.id).state
            if state not in READY_STATES and answer.was_replaced:
                task.backend.mark_as_revoked(request.id, "replaced", store_result=True)
            elif state not in READY_STATES:
                self._requeue_until_result()
        self._emit("already_done", why="has run already: this copy is dropped")
        raise Ignore("a copy of this message has run")

    def _requeue_until_result(self) -> None:
        """Requeue: the run that ended is about to store its result, or died before it could.

        After a ttl without a result it counts as dead, as everywhere: then this copy runs.
        """
        decision = policy.on_done(self._situation())
        if self.header.unseen is None:
            self.header = replace(self.header, unseen=time.time())
        if time.time() - (self.header.unseen or 0.0) > self.options.ttl:
            locks = self.execution.locks
            lapsed = ended_mark(self.execution.holder, ttl=0.001)
            with suppress(LockUnavailable):  # the message comes again and tries again
                locks.perform(locks.commands.release(self.name, "", marks=[lapsed]))
                decision = replace(decision, pause=0.0)
        self._requeue(decision)

    def _situation(self) -> Situation:
        request = self.request
        has_message = not (request.called_directly or request.is_eager or self.execution.outer)
        return Situation(
            task_id=request.id,
            attempt=self.execution.holder.attempt,
            has_followers=bool(request.chain or request.callbacks),
            can_requeue=has_message,
            times_requeued=self.header.times,
            patience_used=self._patience_used(),
            longest_pause=self._longest_pause(),
            had_reservation=bool(self.reservation.token),
        )

    def _patience_used(self) -> float:
        since = self.header.since
        return 0.0 if since is None else max(0.0, time.time() - since)

    def _longest_pause(self) -> float:
        """Limit a pause: a delayed message must come before its visibility timeout copies it."""
        transport = self.task.app.conf.broker_transport_options or {}
        return float(transport.get("visibility_timeout", 3600)) / 4

    def _skip(self, conflict: Conflict) -> dict[str, Any]:
        holder = conflict.holders[0].as_public_dict() if conflict.holders else None
        self._emit("skipped", conflict=conflict)
        self._send_event("task-skipped", lock=self.name, holder=holder)
        return {"skipped": True, "lock": self.name, "holder": holder}

    def _emit(self, kind: events.EventKind, **detail: Any) -> None:
        token = self.execution.token
        events.emit(kind, self.name, token, task=self.task.name, task_id=self.request.id, **detail)

    def _send_event(self, kind: str, **fields: Any) -> None:
        if self.request.called_directly or self.request.is_eager:
            return
        try:
            self.task.send_event(kind, **fields)
        except Exception as error:  # noqa: BLE001 (a lost event must not fail a task)
            logger.warning("the event %s could not be sent: %s", kind, printable(str(error)))

    def _requeue(self, decision: Decision) -> None:
        """Publish the same message again, later; retries untouched, canvas intact, slot freed."""
        headers = self.header.requeued(time.time()).write(self.request.headers)
        message = self.task.signature_from_request(
            self.request, retries=self.request.retries, countdown=decision.pause, headers=headers
        )
        self._publish(message)
        self.reservation.pass_on()
        self._emit("requeued", pause=decision.pause, why=decision.why)
        raise Ignore(decision.why)

    def _publish(self, message: Any) -> None:
        """Publish until it succeeds: an acknowledged message exists nowhere else."""
        while True:
            try:
                message.apply_async()
            except OperationalError as error:
                logger.warning(
                    "task %s[%s] cannot be requeued now and is tried again: %s (lock %r)",
                    self.task.name,
                    printable(str(self.request.id)),
                    printable(str(error)),
                    self.name,
                )
                time.sleep(0.5)
            else:
                return


def _is_readable(backend: Any) -> bool:
    """Whether results can be read here: those of ``rpc`` go only to the caller."""
    return not (sends_results_to_caller(backend) or isinstance(backend, DisabledBackend))
