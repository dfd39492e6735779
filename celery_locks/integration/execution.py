"""One run of a task under its lock: acquire, run, release, and what to tell Celery otherwise.

Everything of one execution lives in an :class:`Execution`, never on the task object, which threads
share. The name is computed once, from the arguments as they came. The lock is given back in the
``finally`` of the call, which is before Celery publishes the next link of a chain.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry
from celery.states import READY_STATES, RETRY
from kombu.exceptions import OperationalError

from celery_locks import events, keys, logs, policy
from celery_locks import options as lock_options
from celery_locks.clock import now
from celery_locks.errors import (
    AlreadyDone,
    LockConflict,
    LockUnavailable,
    LockUsageError,
)
from celery_locks.flows import new_token
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.header import HEADER
from celery_locks.integration.interrupt import Interrupter, KeptElsewhere, RaisedHere
from celery_locks.integration.naming import lock_name, signature_of
from celery_locks.integration.once import once_of
from celery_locks.integration.places import leave_queue
from celery_locks.keeper import keeper
from celery_locks.lease import Lease
from celery_locks.model import Conflict, Holder, this_process
from celery_locks.once import Once
from celery_locks.options import LockOptions
from celery_locks.policy import Decision, Situation
from celery_locks.store.verbs import Done, Mark, Renewal, budget_of, queued_token
from celery_locks.store.verbs import ended as job_ended

logger = logging.getLogger("celery_locks")

_current: ContextVar[Execution | None] = ContextVar("celery_locks_execution", default=None)


class Unlocked:
    """What ``self.lock`` is where a task runs without a lock, as it was told it may."""

    name = ""
    fence = 0
    remaining = float("inf")

    def check(self) -> None:
        """Nothing to lose."""

    def __bool__(self) -> bool:
        return False


def current_lease() -> Lease | None:
    """The lease that the task running here holds; None outside, and where it runs unlocked."""
    execution = _current.get()
    return execution.lease if execution else None


def current_execution() -> Execution | None:
    return _current.get()


class Execution:
    """A task, its request and its lock."""

    def __init__(
        self,
        task: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        within: Execution | None = None,
    ) -> None:
        """``within`` is the run whose body called its own task directly: one message, two calls."""
        self.task = task
        self.within = within
        self.request = task.request
        self.args = args
        self.kwargs = kwargs
        self.note: dict[str, Any] = dict((self.request.headers or {}).get(HEADER) or {})
        self.options: LockOptions = task.lock_options(self.note.get("options"))
        self.lease: Lease | None = None
        self.token = ""
        # What the message holds in the queue is ours to give back, unless it goes on with a copy.
        self.owes_place = within is None and "queued" in self.note
        self.once: Once | None = None
        self._interrupter = Interrupter()

    def run(self, call: Callable[..., Any]) -> Any:
        """The result of the task, or of not running it."""
        name = None
        if self.options.enabled:
            name = lock_name(self.task, self.options, self.args, self.kwargs)
        if name is None:
            return self._call(call, under=self._locked_around())
        if holding := self._holding(name):
            return self._call(call, under=holding)
        self.holder = self._holder()
        self.locks: AppLocks = locks_of(self.task.app)
        self.once = once_of(self.task, self.options, name)
        try:
            answer = self._acquire(name)
            if isinstance(answer, Lease):
                self.lease = answer
        except LockUnavailable as error:
            return self._unavailable(name, error, call)
        except BaseException:
            # A time limit may strike between the grant and our knowing of it.
            self._abandon(name)
            raise
        if isinstance(answer, Done):
            if answer.mark:
                return self._repeat(name, answer.mark)
            return self._already_done(name, answer)
        if isinstance(answer, Conflict):
            return self._conflict(answer)
        answer.on_stop = self._interrupter.stop
        self._leave_other_place(name)
        self._forget_conflicts()
        return self._run_locked(call)

    def _abandon(self, name: str) -> None:
        keeper.discard(self.token)
        until = now() + self.options.ttl
        keeper.give_back(name, self.token, self.locks.keeper_store, self.locks.verbs, until)

    def _holding(self, name: str) -> Execution | None:
        """Of the calls we are within, the one that has this lock."""
        if self.lease and self.lease.name == name:
            return self
        return self.within._holding(name) if self.within else None

    def _locked_around(self) -> Execution | None:
        """The nearest call around us that has a lock. Celery 5.3 gives an inner call no task id."""
        around = self.within
        while around and not around.lease:
            around = around.within
        return around

    def _acquire(self, name: str) -> Lease | Conflict | Done:
        # The token that came with the message is the outermost call's.
        given = {} if self.within else (self.request.properties or {}).get(HEADER) or {}
        kept_elsewhere = given.get("keeper", os.getpid()) != os.getpid()
        self.token = given.get("token") or new_token()
        self._interrupter.prepare()
        return self.locks.acquire_for_task(
            self.options.spec(name),
            self.holder,
            KeptElsewhere if kept_elsewhere else Lease,
            on_lost=self._interrupter.lost,
            token=self.token,
            kept_elsewhere=kept_elsewhere,
            ask_done=self._may_be_a_copy() or "queued" in self.note,
            frees=self._place_beside(name),
            supersedes=self._replaced(),
            once=self.once.question if self.once else None,
            policy=self.options.on_conflict,
        )

    def _queued(self) -> tuple[str, str]:
        """Name and token of the lock that this message held in the queue."""
        place, token = ("", "") if self.within else self.note.get("queued") or ("", "")
        return place, token

    def _place_beside(self, name: str) -> tuple[str, str]:
        """The queue's lock, where it is another than the run's and the same call can free it."""
        place, token = self._queued()
        root = self.locks.verbs.root
        return (place, token) if token and place != name and root(place) == root(name) else ("", "")

    def _leave_other_place(self, name: str) -> None:
        """Published under a key of another shard, by a release with other options: freed apart."""
        place, token = self._queued()
        if token and place != name and not self._place_beside(name)[1]:
            self.leave_queue()
        self.owes_place = False

    def _replaced(self) -> tuple[str, float]:
        """The message in whose place this one was published, and how long to remember that."""
        task_id, seconds = ("", 0.0) if self.within else self.note.get("replaced") or ("", 0.0)
        return task_id, seconds

    def _holder(self) -> Holder:
        process = this_process()
        return Holder(
            task_id=self.request.id,
            task=self.task.name,
            retries=self.request.retries or 0,
            replaced=self.request.replaced_task_nesting or 0,
            worker=self.request.hostname,
            host=process.host,
            pid=process.pid,
        )

    def _may_be_a_copy(self) -> bool:
        """Redelivered, requeued by us, or delayed: the ways in which a message comes twice."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        came_late = bool(redelivered or "since" in self.note or self.request.eta)
        return came_late and not self.within

    def _run_locked(self, call: Callable[..., Any]) -> Any:
        assert self.lease is not None
        keep, ended, token = 0.0, True, self.lease.token
        marks = self.once.not_ended() if self.once else []
        try:
            on_lost, on_stop = self.options.on_lost, self.options.on_stop
            armed = self._interrupter.armed(
                self.lease, raises=on_lost == "raise", stops=on_stop == "raise"
            )
            result = self._call(call, armed=armed)
            if self.once:
                marks = [self.once.done(token, result)]
            return result
        except Retry as retry:
            keep = self._kept_over(retry)
            raise
        except Reject:
            ended = False
            raise
        except RaisedHere as error:
            raise error.plain from None
        except Ignore:
            raise
        except Exception as error:
            if self.once:
                marks = self.once.failed(token, error)
            raise
        except BaseException:
            # Terminated or exiting: the message may come again, and must then run.
            ended = False
            raise
        finally:
            self.release(keep, ended, marks)

    def _call(
        self,
        call: Callable[..., Any],
        under: Execution | None = None,
        armed: AbstractContextManager[None] | None = None,
    ) -> Any:
        token = _current.set(under or self)
        try:
            # Innermost: a loss must not be raised in what follows, which others rely on.
            with armed or nullcontext():
                return call(*self.args, **self.kwargs)
        finally:
            _current.reset(token)

    def _kept_over(self, retry: Retry) -> float:
        """With ``on_retry="keep"``: until the next attempt is due, and a ttl more for the queue.

        With ``queued+running`` the next attempt has its place in the queue like any message.
        """
        if self.options.on_retry != "keep" and not self._keeps_place:
            return 0.0
        when = retry.when or 0
        if isinstance(when, datetime):
            moment = datetime.now(UTC) if when.tzinfo else datetime.now()
            when = (when - moment).total_seconds()
        beyond = self.options.pending_ttl if self._keeps_place else self.options.ttl
        return max(0.0, float(when)) + beyond

    @property
    def _keeps_place(self) -> bool:
        return self.options.scope == "queued+running" and not self.within and bool(self.request.id)

    def release(self, keep: float = 0.0, ended: bool = True, marks: Sequence[Mark] = ()) -> None:
        """Give the lock back, once; what cannot be reached now is the keeper's to try again."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        can_come_again = self.task.acks_late or self._may_be_a_copy()
        if ended and self.request.id and can_come_again and not self.within:
            marks = [*marks, job_ended(self.holder, self.locks.settings.done_ttl)]
        try:
            keep_as = queued_token(self.request.id) if keep and self._keeps_place else ""
            self.locks.release_for_task(lease, keep=keep, keep_as=keep_as, marks=marks)
        except LockUnavailable as error:
            logs.owed(lease.name, error)

    # What is told to Celery when the task does not run.

    def _conflict(self, conflict: Conflict) -> Any:
        decision = policy.on_conflict(conflict, self.options, self._situation())
        if decision.kind == "requeue":
            self._stay_in_queue(decision.pause)
            self._requeue(conflict.name, decision)
        self.leave_queue()
        if decision.kind == "skip":
            return self._skip(conflict)
        raise LockConflict(conflict)

    def leave_queue(self) -> None:
        """This message will not run, and not come back: others may queue."""
        self.owes_place = False
        if self._queued()[1]:
            leave_queue(self.note, self.task.app)

    def _situation(self) -> Situation:
        request = self.request
        has_message = not (request.called_directly or request.is_eager or self.within)
        return Situation(
            task_id=request.id,
            attempt=self.holder.attempt,
            has_followers=bool(request.chain or request.callbacks),
            can_requeue=has_message,
            times_requeued=int(self.note.get("times", 0)),
            patience_used=time.time() - float(self.note.get("since", time.time())),
            longest_pause=self._longest_pause(),
            had_a_place=bool(self._queued()[1]),
        )

    def _longest_pause(self) -> float:
        """A delayed message must come before its visibility timeout makes copies of it."""
        transport = self.task.app.conf.broker_transport_options or {}
        return float(transport.get("visibility_timeout", 3600)) / 4

    def _skip(self, conflict: Conflict) -> dict[str, Any]:
        holder = conflict.holders[0].as_dict() if conflict.holders else None
        self._tell("skipped", conflict.name, conflict=conflict)
        self._send_event("task-skipped", lock=conflict.name, holder=holder)
        return {"skipped": True, "lock": conflict.name, "holder": holder}

    def _tell(self, kind: events.Kind, name: str, **detail: Any) -> None:
        events.emit(kind, name, self.token, task=self.task.name, task_id=self.request.id, **detail)

    def _send_event(self, kind: str, **fields: Any) -> None:
        if self.request.called_directly or self.request.is_eager:
            return
        try:
            self.task.send_event(kind, **fields)
        except Exception as error:  # noqa: BLE001 (an event is not worth a task)
            logger.warning("the event %s could not be sent: %s", kind, error)

    def _requeue(self, name: str, decision: Decision) -> None:
        """Publish the same message again, later; retries untouched, canvas intact, slot freed."""
        note = {
            **self.note,
            "since": self.note.get("since", time.time()),
            "times": int(self.note.get("times", 0)) + 1,
        }
        headers = {**(self.request.headers or {}), HEADER: note}
        again = self.task.signature_from_request(
            self.request, retries=self.request.retries, countdown=decision.pause, headers=headers
        )
        self._publish(again, name)
        self.owes_place = False
        self._tell("requeued", name, pause=decision.pause, why=decision.why)
        raise Ignore(decision.why)

    def _publish(self, again: Any, name: str) -> None:
        """Until it succeeds: if the message is acknowledged already, nobody else has the job."""
        while True:
            try:
                again.apply_async()
            except OperationalError as error:
                logger.warning(
                    "task %s[%s] cannot be put back now and is tried again: %s (lock %r)",
                    self.task.name,
                    self.request.id,
                    error,
                    name,
                )
                time.sleep(0.5)
            else:
                return

    def _stay_in_queue(self, pause: float) -> None:
        """The message goes on, and its place with it: as long again as for a new one."""
        name, token = self._queued()
        if token:
            renewal = Renewal(name, token, pause + self.options.pending_ttl)
            with suppress(LockUnavailable):
                self.locks.perform(self.locks.verbs.renew([renewal], budget_of(self.options.ttl)))

    def _unavailable(self, name: str, error: LockUnavailable, call: Callable[..., Any]) -> Any:
        decision = policy.on_unavailable(self.options, self._situation())
        if decision.kind == "requeue":
            self._requeue(name, decision)
        if decision.kind == "run":
            self._tell("unlocked", name, does="runs", why=str(error))
            self.leave_queue()
            return self._call(call)
        self.leave_queue()
        raise error

    def _repeat(self, name: str, mark: str) -> Any:
        """The work of this lock is done (``once``): its result, or word that there is none."""
        assert self.once is not None
        repeat = self.once.repeat(mark)
        self._tell("already_done", name, why=f"does not run: {repeat.reason}")
        self._send_event("task-skipped", lock=name, reason=repeat.reason)
        self.leave_queue()
        if not repeat.has_result and self._situation().has_followers:
            raise AlreadyDone(name, repeat.reason)  # the next link would be run on that value
        return repeat.value

    def _already_done(self, name: str, answer: Done) -> None:
        """A copy of this message has run to its end, or another message took its place."""
        task, request = self.task, self.request
        if answer.is_being_replaced:
            self._requeue(name, policy.on_done(self._situation()))
        has_result = not isinstance(task.backend, DisabledBackend)
        if has_result and not (request.ignore_result or task.ignore_result):
            state = task.AsyncResult(request.id).state
            if state not in READY_STATES and answer.was_replaced:
                task.backend.mark_as_revoked(request.id, "replaced", store_result=True)
            elif state not in READY_STATES and state != RETRY:
                # It may be about to store its result, or have died before it could.
                self._requeue(name, policy.on_done(self._situation()))
        self._tell("already_done", name, why="has run already: this copy is dropped")
        raise Ignore("a copy of this message has run")

    def _forget_conflicts(self) -> None:
        """A retry inherits the headers: what was about getting here must not travel on."""
        assert self.lease is not None
        kept = {word: value for word, value in self.note.items() if word == "options"}
        if self._keeps_place:
            kept["queued"] = [self.lease.name, queued_token(self.request.id)]
        if kept != self.note and not self.within:
            self.request.headers = {**(self.request.headers or {}), HEADER: kept}


def checked_for_call(task: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one call, which travel in a header and so must be plain."""
    where = "apply_async(lock=…)"
    words = lock_options.checked(said, where)
    key = words.get("key")
    if callable(key):
        raise LockUsageError(f"{where}: a key for one call must be a text")
    if key is not None:
        keys.check_template(key, signature_of(task), where)
    return words
