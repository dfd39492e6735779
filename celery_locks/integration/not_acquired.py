"""The outcome of a task that does not acquire its lock.

It is skipped, fails, is requeued, delayed or parked, returns a saved result, is dropped as a copy,
or runs unlocked.

More than 300 lines: one method for each answer of the store, and the calls of Celery they share.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore
from celery.states import READY_STATES
from kombu.exceptions import OperationalError

from celery_locks import events, policy
from celery_locks.core.renewer import renewer
from celery_locks.errors import AlreadyDone, LockConflict, LockUnavailable, RateLimited
from celery_locks.integration.displacement import Displacement, ask_to_stop, plan_displacement
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.hold_in_task import EndRun, OnHoldConflict
from celery_locks.integration.internals import sends_results_to_caller
from celery_locks.integration.lock_name import group_of
from celery_locks.integration.message_priority import rank_of
from celery_locks.integration.message_text import record_message
from celery_locks.integration.waking import waker_of
from celery_locks.options import LockOptions
from celery_locks.policy import Decision, Situation
from celery_locks.printable_text import printable
from celery_locks.skipped import RATE_LIMITED
from celery_locks.store.commands.locks import (
    ParkRequest,
    budget_of,
    ended_mark,
    reservation_token,
)
from celery_locks.store.commands.replies import Ended, Limited, Parked
from celery_locks.types import Conflict
from celery_locks.validation import MAX_LIMIT

if TYPE_CHECKING:
    from celery_locks.integration.execution import Execution

# A delayed message is delivered this much before its start, and the run sleeps until then: one that
# comes late would delay all later starts.
EARLY = 0.05


class NotAcquired:
    """What to do with an execution that has not acquired the lock ``name``."""

    def __init__(self, execution: Execution, name: str) -> None:
        self.execution = execution
        self.name = name
        self.task = execution.task
        self.request = execution.request
        self.header = execution.header
        self.options = execution.options
        self.reservation = execution.reservation
        self._displacement = Displacement()

    def on_superseded(self, task_id: str) -> NoReturn:
        """End a run that was asked to stop because another task takes its place."""
        reason, request = f"superseded by {task_id}", self.request
        if not (request.ignore_result or self.task.ignore_result):
            self.task.backend.mark_as_revoked(request.id, reason, request, store_result=True)
        raise Ignore(reason)

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

    def on_limited(self, limited: Limited) -> dict[str, Any]:
        """Delay the task until the start that it was promised, or skip or fail it.

        A delay is no conflict: it does not use up the lock's patience. If the start is later than
        a message may be delayed, the message comes back earlier and is delayed again; the promised
        start stays the same.
        """
        if limited.is_promised:
            pause = min(max(0.0, limited.seconds - EARLY), self._longest_pause())
            self.reservation.extend(pause + self.options.pending_ttl, budget_of(self.options.ttl))
            self._emit_limited(limited, "delay")
            self._send_again(self.header, pause)
            raise Ignore(f"it is delayed by the rate of {limited.rate!r}")
        self.reservation.release()
        skips = any(it.skips for it in self.execution.rates if it.name == limited.rate)
        if not skips or self._situation().has_followers:
            self._emit_limited(limited, "raise")
            raise RateLimited(limited.rate, limited.seconds, limited.pause)
        self._emit_limited(limited, "skip")
        self._send_event("task-skipped", lock=self.name, reason=RATE_LIMITED)
        return {
            "skipped": True,
            "reason": RATE_LIMITED,
            "rate": limited.rate,
            "retry_after": limited.seconds,
            **({"pause": limited.pause.as_dict()} if limited.pause else {}),
        }

    def park_request(self, conflict: Conflict) -> ParkRequest | None:
        """Return the message to park, if the policy says so; its header has its reservation."""
        decision = policy.on_conflict(conflict, self.options, self._situation())
        if decision.kind != "park":
            return None
        execution, request, lifetime = self.execution, self.request, self.options.pending_ttl
        joins = self.header.joins or joined_fence(self.options, conflict)
        self._displacement = plan_displacement(self.options, conflict)
        header = replace(
            self.header.of_call(),
            queued=self.name,
            parked=True,
            joins=joins,
            displacements=self._displacement.number,
        )
        signature = self.task.signature_from_request(
            request, retries=request.retries, headers=header.write(request.headers)
        )
        message = record_message(self.task.app, signature.apply_async)[0]
        return ParkRequest(
            holder=execution.holder._replace(
                retries=-1, replaced=0, owner="", extra=self._displacement.extra
            ),
            attempt=execution.holder.attempt,
            lifetime=lifetime,
            message=message,
            # A message that was parked before, was woken and came too late, is never refused.
            most=MAX_LIMIT if self.header.parked else self.options.max_parked,
            latest=decision.latest,
            group=group_of(self.task, self.options.fair_by, execution.args, execution.kwargs),
            rank=rank_of(self.task.app, message) if self.options.by_priority else 0,
            ticket=conflict.ticket,
        )

    def on_parked(self, parked: Parked) -> NoReturn:
        """End the run: the lock server has the message, so the broker's is acknowledged."""
        own = reservation_token(self.request.id, parked=True)
        if self.reservation.token == own:
            self.reservation.pass_on()
        else:
            self.reservation.release()
        ask_to_stop(self.execution.locks, self.name, self._displacement.runs, self.request.id)
        self._emit("parked", position=parked.position, why="the lock is busy")
        self._send_event("task-parked", lock=self.name, position=parked.position)
        raise Ignore("it is parked until it has its lock")

    def _emit_limited(self, limited: Limited, decision: str) -> None:
        self._emit(
            "limited",
            rate=limited.rate,
            decision=decision,
            pause=limited.seconds,
            ahead=limited.ahead,
            **({"paused": str(limited.pause)} if limited.pause else {}),
        )

    def decide_in_body(self, conflict: Conflict, on_conflict: OnHoldConflict) -> Decision:
        """Decide what a busy lock in the body means: as for the task's own, but without an end."""
        options = replace(self.options, on_conflict=on_conflict, wait="forever")
        return policy.on_conflict(
            conflict, options, replace(self._situation(), had_reservation=False)
        )

    def on_end_run(self, end: EndRun) -> dict[str, Any]:
        """End a run whose body found another lock busy; its own lock is released already.

        The requeued message carries the reservation that the release left for it, if any.
        """
        if end.decision.kind == "requeue":
            kept = end.header or self.header.of_call()
            self.header = replace(kept, times=self.header.times)
            self._requeue(end.decision)
        return self._skip(end.conflict)

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
        """Return the saved result of completed work (``once``), or a mapping that says why."""
        rule = self.execution.join if self.header.joins else self.execution.once
        assert rule is not None
        repeat = rule.repeat(mark)
        why = ", ".join(filter(None, (f"does not run: {repeat.reason}", repeat.failed)))
        self._emit("already_done", why=why)
        self._send_event("task-skipped", lock=self.name, reason=repeat.reason)
        if self.reservation.release_now():
            waker_of(self.task.app).wake_due()
        is_joined_failure = bool(self.header.joins and repeat.failure)
        if is_joined_failure or (not repeat.has_result and self._situation().has_followers):
            # The next link would get that mapping as its argument.
            raise AlreadyDone(self.name, repeat.reason, repeat.failed)
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
        if answer.was_replaced:
            self._emit("already_done", why="was replaced by a later message: this one is dropped")
            raise Ignore("a later message replaced this one")
        self._emit("already_done", why="has run already: this copy is dropped")
        raise Ignore("a copy of this message has run")

    def _requeue_until_result(self) -> None:
        """Requeue: the run that ended is about to store its result, or died before it could.

        After a ttl without a result it counts as dead: then this copy runs.
        """
        decision = policy.on_done(self._situation())
        if self.header.unseen is None:
            self.header = replace(self.header, unseen=time.time())
        if time.time() - (self.header.unseen or 0.0) > self.options.ttl:
            locks = self.execution.locks
            lapsed = ended_mark(self.execution.holder, ttl=0.001)  # deletes the mark
            with suppress(LockUnavailable):  # the message comes again and tries again
                locks.perform(locks.commands.release(self.name, "", marks=[lapsed]))
                decision = replace(decision, pause=0.0)
        self._requeue(decision)

    def _situation(self) -> Situation:
        request = self.request
        return Situation(
            task_id=request.id,
            attempt=self.execution.holder.attempt,
            has_followers=bool(request.chain or request.callbacks),
            can_requeue=has_message(self.execution),
            can_park=self.execution.can_park,
            times_requeued=self.header.times,
            patience_used=self._patience_used(),
            longest_pause=self._longest_pause(),
            had_reservation=bool(self.reservation.token),
        )

    def _patience_used(self) -> float:
        since = self.header.since
        return 0.0 if since is None else max(0.0, time.time() - since)

    def _longest_pause(self) -> float:
        """Limit a pause: a delayed message must come before its visibility timeout is over."""
        transport = self.task.app.conf.broker_transport_options or {}
        return float(transport.get("visibility_timeout", 3600)) / 4

    def _skip(self, conflict: Conflict) -> dict[str, Any]:
        holder = conflict.holders[0].as_public_dict() if conflict.holders else None
        self._emit("skipped", conflict=conflict)
        pause = {"pause": conflict.pause.as_dict()} if conflict.pause else {}
        self._send_event("task-skipped", lock=conflict.name, holder=holder, **pause)
        return {"skipped": True, "lock": conflict.name, "holder": holder, **pause}

    def _emit(self, kind: events.EventKind, **detail: Any) -> None:
        token = self.execution.token
        events.emit(kind, self.name, token, task=self.task.name, task_id=self.request.id, **detail)

    def _send_event(self, kind: str, **fields: Any) -> None:
        if self.request.called_directly or self.request.is_eager:
            return
        try:
            self.task.send_event(kind, **fields)
        except Exception as error:  # noqa: BLE001 (a lost event must not fail a task)
            renewer.reports.warning(
                "the event %s could not be sent: %s", kind, printable(str(error))
            )

    def _requeue(self, decision: Decision) -> NoReturn:
        """Publish the same message again, later; retries untouched, canvas intact, slot freed."""
        self._send_again(self.header.requeued(time.time()), decision.pause)
        self._emit("requeued", pause=decision.pause, why=decision.why)
        raise Ignore(decision.why)

    def _send_again(self, header: LockHeader, pause: float) -> None:
        headers = header.write(self.request.headers)
        message = self.task.signature_from_request(
            self.request, retries=self.request.retries, countdown=pause, headers=headers
        )
        self._publish(message)
        self.reservation.pass_on()

    def _publish(self, message: Any) -> None:
        """Publish, and try again while the broker is away: this may be the only copy."""
        while True:
            try:
                message.apply_async()
            except OperationalError as error:
                renewer.reports.warning(
                    "task %s[%s] cannot be requeued now and is tried again: %s (lock %r)",
                    self.task.name,
                    printable(str(self.request.id)),
                    printable(str(error)),
                    self.name,
                )
                time.sleep(0.5)
            else:
                return


def joined_fence(options: LockOptions, conflict: Conflict) -> int:
    """Return the fence of the run whose result a call waits for; 0 if there is none to join."""
    return min((it.fence for it in conflict.holders), default=0) if options.joins else 0


def has_message(execution: Execution) -> bool:
    """Whether there is a message that can be sent again: not for eager and direct calls."""
    request = execution.request
    return not (request.called_directly or request.is_eager or execution.outer)


def _is_readable(backend: Any) -> bool:
    """Whether results can be read here: those of ``rpc`` go only to the caller."""
    return not (sends_results_to_caller(backend) or isinstance(backend, DisabledBackend))
