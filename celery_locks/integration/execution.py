"""One run of a task under its lock: acquire, run, release. Without the lock: ``not_acquired.py``.

The state of one execution is in an :class:`Execution`, never on the task object, which threads
share. The name is computed once, from the arguments as they came. The lock is released in the
``finally`` of the call, which is before Celery publishes the next link of a chain.

More than 300 lines: the steps of one run share its state, and are read in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_locks import logs
from celery_locks.clock import now
from celery_locks.core.idempotency import Once
from celery_locks.core.lease import Lease, part_token
from celery_locks.core.owners import current_owner
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockDeadlock, LockUnavailable, StopRequested
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.current_execution import current, holder_of
from celery_locks.integration.displacement import DISPLACEMENTS, find_superseding
from celery_locks.integration.headers import NO_HEADER, LockHeader, given_token
from celery_locks.integration.hold_in_task import EndRun, OnHoldConflict
from celery_locks.integration.idempotency import join_of, once_of
from celery_locks.integration.interrupt import InjectedError, RemotelyRenewedLease, make_interrupter
from celery_locks.integration.lock_name import limit_of, limits_by_name, lock_name, name_for_rates
from celery_locks.integration.not_acquired import NotAcquired, has_message
from celery_locks.integration.rate_checks import rate_checks
from celery_locks.integration.reservation import (
    NO_RESERVATION,
    Reservation,
    replaced_message,
    seconds_until,
)
from celery_locks.integration.waking import waker_of
from celery_locks.options import LockOptions, is_several
from celery_locks.store.commands.locks import (
    AcquireExtras,
    Mark,
    RateCheck,
    budget_of,
    ended_mark,
    reservation_token,
)
from celery_locks.store.commands.replies import Completed, Ended, Limited, Parked, Rejection
from celery_locks.types import Conflict, LockSpec

# The executions of this process that have acquired a lock and not released it.
unreleased: set[Execution] = set()


class Execution:
    """One run of a task: the task, its request, its lock and the message's reservation."""

    lease: Lease | None = None
    token = ""
    also: tuple[LockSpec, ...] = ()
    once: Once | None = None
    join: Once | None = None
    rates: tuple[RateCheck, ...] = ()
    can_park = True
    _extras: AcquireExtras | None = None
    _may_be_a_copy = False
    _leaves_result = True

    def __init__(
        self,
        task: Any,
        request: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outer: Execution | None = None,
    ) -> None:
        """Prepare a run; ``outer`` is the one whose body calls this task directly."""
        self.task = task
        self.request = request
        self.outer = outer
        self.args = args
        self.kwargs = kwargs
        self.header = LockHeader.read(request.headers)
        self.options: LockOptions = task.lock_options(self.header.options)
        # A direct call has the message of the outer run, to which the reservation belongs.
        self.reservation = NO_RESERVATION
        if self.header is not NO_HEADER and not outer:
            self.reservation = Reservation(*self.header.reservation(request.id), task.app)

    def run(self, body: Callable[..., Any]) -> Any:
        """Run the task's ``body``, and return its result or the result of not running it."""
        name = None
        if self.options.enabled:
            name = lock_name(self.task, self.options, self.args, self.kwargs)
        has_lock = name is not None
        if self.options.enabled and name is None and self.options.rates:
            name = name_for_rates(self.task)
        if name is None:
            self.reservation.release()  # taken by a publisher with another key, or other options
            return self._call_body(body, covered_by=self._find_locked_outer())
        limits = {name: 1}
        if has_lock and is_several(self.options.key):
            limits = limits_by_name(self.task, self.options, self.args, self.kwargs)
        if self.outer and (holding := self.outer.find_holding(limits)):
            return self._call_body(body, covered_by=holding)
        self._owner = current_owner()
        self.holder = holder_of(self.task, self.request, owner=self._owner.id)
        if self.header.displacements:
            extra = {DISPLACEMENTS: self.header.displacements}
            self.holder = self.holder._replace(extra=extra)
        self.locks: AppLocks = locks_of(self.task.app)
        if self.options.once:
            self.once = once_of(self.task, self.options, name)
        if self.options.joins:
            self.join = join_of(self.task, name, self.locks.settings.done_ttl)
        if self.options.rates:
            self.rates = rate_checks(
                self.task, self.options, self.args, self.kwargs, can_delay=has_message(self)
            )
        spec = self.options.spec.named(name)  # raises for a name that the store does not accept
        if has_lock and is_several(self.options.key):
            spec, *also = (spec.named(it).limited(limit) for it, limit in limits.items())
            self.also = tuple(also)
        elif has_lock and callable(self.options.limit):
            spec = spec._replace(
                limit=limit_of(self.task, self.options.limit, self.args, self.kwargs)
            )
        try:
            answer = self._acquire(name, spec)
            if isinstance(answer, Conflict) and self.options.parks:
                answer = self._acquire_or_park(name, spec, answer)
            if isinstance(answer, Lease):
                self.lease = answer
                unreleased.add(self)
        except LockUnavailable as error:
            NotAcquired(self, name).on_unavailable(error)  # raises unless it shall run unlocked
            return self._call_body(body)
        except LockDeadlock:
            raise  # whatever on_conflict says: trying later would not help, and nothing is queued
        except BaseException:
            # A time limit may interrupt between the grant and the assignment.
            self._release_if_acquired(name)
            raise
        if not isinstance(answer, Lease):
            return self._on_not_acquired(name, answer)
        answer.rates = tuple(rate.name for rate in self.rates)
        answer.on_stop = self._interrupter.on_stop
        if self.header is not NO_HEADER or self.options.scope != "running":
            self.reservation.on_acquired(name)
            self._clear_header()
        return self._run_locked(body, answer)

    def _on_not_acquired(self, name: str, answer: Conflict | Rejection) -> Any:
        if isinstance(answer, Completed):
            return NotAcquired(self, name).on_completed(answer.mark)
        if isinstance(answer, Ended):
            return NotAcquired(self, name).on_ended(answer)
        if isinstance(answer, Conflict):
            return NotAcquired(self, name).on_conflict(answer)
        if isinstance(answer, Limited):
            return NotAcquired(self, name).on_limited(answer)
        assert isinstance(answer, Parked)
        return self._not_acquired.on_parked(answer)

    def fences_for(self, task_id: str, attempt: int) -> tuple[int, ...]:
        """Return the fences that a message carries which this run publishes: see ``takeover.lua``.

        Empty unless it is a later attempt of this job. The run has the locks of the locked tasks
        that its body calls directly, too.
        """
        fences = self.outer.fences_for(task_id, attempt) if self.outer else ()
        lease = self.lease
        if lease and self.holder.task_id == task_id and self.holder.attempt < attempt:
            fences = (*fences, *map(int, lease.fences.values()))
        return fences

    def end_run(self, conflict: Conflict, on_conflict: OnHoldConflict) -> EndRun | None:
        """Return what ends this run, whose body finds another lock busy; None: an error does."""
        if conflict.is_own:
            return None  # the run itself holds it, now and the next time
        if not self.lease:
            self.holder = holder_of(self.task, self.request)
        decision = NotAcquired(self, conflict.name).decide_in_body(conflict, on_conflict)
        return None if decision.kind == "raise" else EndRun(self, conflict, decision)

    def on_end_run(self, end: EndRun) -> Any:
        """Return the result of a run that its body ended, or requeue its message."""
        if end.execution is not self:
            raise end  # of an outer run, whose body calls this task directly
        return NotAcquired(self, end.conflict.name).on_end_run(end)

    def forget_request(self) -> None:
        """Break the reference cycle with the request, so that no garbage collection is needed."""
        if self.lease is None:
            del self.request

    def _release_if_acquired(self, name: str) -> None:
        renewer.discard(self.token)
        self._owner.leases.pop(self.token, None)
        # As after a failed acquire, whose pending release this one replaces.
        marks = self.once.unfinished_marks() if self.once else ()
        release_later, ttl = self.locks.operations.release_later, self.options.ttl
        release_later(name, self.token, ttl, marks=marks, repeat_until_expired=True)
        for number, spec in enumerate(self.also, start=1):
            token = part_token(self.token, number)
            renewer.discard(token)
            release_later(spec.name, token, ttl, repeat_until_expired=True)

    def find_holding(self, names: Collection[str]) -> Execution | None:
        """Return the execution that holds these locks: this one or an outer one."""
        if self.lease and set(names) <= self.lease.fences.keys():
            return self
        return self.outer.find_holding(names) if self.outer else None

    def _find_locked_outer(self) -> Execution | None:
        """Return the nearest outer execution with a lock: Celery 5.3 gives inner calls no id."""
        outer = self.outer
        while outer and not outer.lease:
            outer = outer.outer
        return outer

    def _acquire(self, name: str, spec: LockSpec) -> Lease | Conflict | Rejection:
        # The token from the main process, which renews the lock, is the outermost execution's.
        supervised_token = "" if self.outer else given_token(self.request.properties)
        self._is_supervised = bool(supervised_token)
        self.token = supervised_token or new_token()
        if not self.outer:
            # The ways in which a message comes twice: redelivered, delayed beyond the visibility
            # timeout (eta), requeued by us (since), or woken twice (parked).
            redelivered = (self.request.delivery_info or {}).get("redelivered")
            self._may_be_a_copy = bool(
                redelivered or self.request.eta or self.header.since or self.header.parked
            )
        self._interrupter = make_interrupter()
        has_extras = self._may_be_a_copy or self.header is not NO_HEADER or self.once or self.rates
        self._extras = self._make_extras(name) if has_extras else None  # may ask the server
        return self._run_acquire(spec, self._extras)

    def _acquire_or_park(
        self, name: str, spec: LockSpec, conflict: Conflict
    ) -> Lease | Conflict | Rejection:
        """Acquire after a conflict, or park the message: one call decides.

        The message is built only now: a lock that is free needs none.
        """
        self._not_acquired = NotAcquired(self, name)
        park = self._not_acquired.park_request(conflict)
        if park is None:
            return conflict
        extras = (self._extras or AcquireExtras())._replace(reject_if_ended=True, park=park)
        answer = self._run_acquire(spec._replace(wait=None), extras)
        if isinstance(answer, Conflict):
            self.can_park = False  # too many wait
        return answer

    def _run_acquire(
        self, spec: LockSpec, extras: AcquireExtras | None
    ) -> Lease | Conflict | Rejection:
        request: AcquireRequest[Lease] = AcquireRequest(
            spec,
            self.holder,
            self.token,
            now(),
            on_lost=self._interrupter.on_lost,
            owner=self._owner,
            lease_class=RemotelyRenewedLease if self._is_supervised else Lease,
            renewed_elsewhere=self._is_supervised,
            extras=extras,
            policy=self.options.on_conflict,
            also=self.also,
        )
        return self.locks.run(self.locks.operations.acquire(request))

    def _make_extras(self, name: str) -> AcquireExtras:
        """Return the additional checks and effects of the acquire; most messages have none."""
        return AcquireExtras(
            reject_if_ended=self._may_be_a_copy or bool(self.reservation.token),
            release_on_grant=self.reservation.released_by_acquire(name),
            supersede=self._find_replaced(),
            newest=self._newest(name),
            idempotency=self.once.check if self.once else None,
            join=self._joined(),
            rates=self.rates,
            published_by=self.header.published_by,
            forget=self.reservation.token if self.options.keep_message else "",
        )

    def _joined(self) -> tuple[str, int]:
        fence = self.header.joins
        return (self.join.mark, fence) if self.join and fence else ("", 0)

    def _newest(self, name: str) -> tuple[str, float]:
        """Keep the order of messages of which the last one counts (``leave_due_message``)."""
        options = self.options
        if not self.reservation.token or not options.has_window or options.arguments != "last":
            return "", 0.0
        return name, options.pending_ttl + options.longest_window

    def _find_replaced(self) -> tuple[str, float]:
        """Look up the message that this one replaced, and how long to remember it.

        The publisher wrote it into the reservation: a header could name any task.
        """
        name, token = self.reservation.name, self.reservation.token
        if not token or not self.header.replaced:
            return "", 0.0
        commands = self.locks.commands
        call = commands.locate(commands.root(name), [token], budget_of(self.options.ttl))
        found = self.locks.perform(call).get(token)
        return replaced_message(found[1]) if found else ("", 0.0)

    def _run_locked(self, body: Callable[..., Any], lease: Lease) -> Any:
        keep_for, ended = 0.0, True
        marks = self.once.unfinished_marks() if self.once else []
        try:
            result = self._call_interruptibly(body, lease)
            if self.once:
                marks = [self.once.completed_mark(lease.token, result)]
            if self.join:
                marks = [*marks, *self.join.joined_marks(lease.fence, result)]
            return result
        except Retry as retry:
            keep_for = self._seconds_to_keep(retry)
            self._leaves_result = False  # the next attempt stores one; its message is sent
            raise
        except Reject:
            ended = False
            raise
        except EndRun as end:
            if end.execution is self and end.decision.kind == "requeue":
                ended, end.header = False, self._header_of_requeued(lease)
                # Before the release leaves it: if the message is not sent, the task releases it.
                own = end.header.reservation(self.request.id)
                self.reservation = Reservation(*own, self.task.app)
                if end.header.of_requeue:
                    keep_for = end.decision.pause + self.options.pending_ttl
            raise
        except InjectedError as error:
            marks = self._failed_marks(lease, error.original)
            self._end_if_superseded(lease, error.original)
            raise error.original from None
        except Ignore:
            self._leaves_result = False
            raise
        except Exception as error:
            marks = self._failed_marks(lease, error)
            self._end_if_superseded(lease, error)
            raise
        except BaseException:
            # Terminated or exiting: the message may come again, and then runs, except with
            # reuse="never", where the mark that the work has begun stays.
            ended, marks = False, []
            raise
        finally:
            self.release(keep_for, ended, marks)

    def _end_if_superseded(self, lease: Lease, error: BaseException) -> None:
        """End a run that stops because another task takes its place; else return."""
        if self.options.cancels and isinstance(error, StopRequested):
            with suppress(LockUnavailable):  # then it ends as a run that was asked to stop
                if by := find_superseding(self.locks, lease.name, self.request.id):
                    NotAcquired(self, lease.name).on_superseded(by)

    def _failed_marks(self, lease: Lease, error: BaseException) -> list[Mark]:
        marks = self.once.failed_marks(lease.token, error) if self.once else []
        if self.join and self.options.on_join_failure == "propagate":
            marks += self.join.joined_failure(lease.fence, error)
        return marks

    def _call_interruptibly(self, body: Callable[..., Any], lease: Lease) -> Any:
        """Call the task's code; a loss is raised in it and never in the code that follows."""
        options = self.options
        previous = current.set(self)
        try:
            self._interrupter.arm(
                lease, raise_loss=options.on_lost == "raise", raise_stop=options.on_stop == "raise"
            )
            result = body(*self.args, **self.kwargs)
            self._interrupter.disarm()
            return result
        except BaseException:
            # Again, in case a time limit interrupted the first disarm().
            self._interrupter.disarm()
            raise
        finally:
            current.reset(previous)

    def _call_body(self, body: Callable[..., Any], covered_by: Execution | None = None) -> Any:
        """Call the task's code without a lock of its own; ``covered_by`` holds one for it."""
        previous = current.set(covered_by or self)
        try:
            return body(*self.args, **self.kwargs)
        finally:
            current.reset(previous)

    def _seconds_to_keep(self, retry: Retry) -> float:
        """Seconds to keep the lock for a retry: until it is due, and a ttl more for the queue.

        0 unless ``on_retry="keep"`` or ``scope="queued+running"``: there the next attempt has a
        reservation, like any message.
        """
        if self.options.on_retry != "keep" and not self._keeps_reservation:
            return 0.0
        beyond = self.options.pending_ttl if self._keeps_reservation else self.options.ttl
        return seconds_until(retry.when, self.task.app) + beyond

    @property
    def _keeps_reservation(self) -> bool:
        return self.options.scope == "queued+running" and not self.outer and bool(self.request.id)

    def _next_token(self, *, requeued: bool) -> str:
        """Return the token of the next message's reservation, which a revoke releases.

        Empty with ``queued``, where the reservation is another lock than the run's.
        """
        has_token = self.options.scope != "queued" and not self.outer and self.request.id
        return (
            reservation_token(self.request.id, again=True, requeued=requeued) if has_token else ""
        )

    def _header_of_requeued(self, lease: Lease) -> LockHeader:
        """Return the header of the message that is requeued after its run has begun."""
        kept = self.header.of_call()
        if self._keeps_reservation:
            kept = replace(kept, queued=lease.name, of_requeue=True)
        return kept

    def release(
        self, keep_for: float = 0.0, ended: bool = True, marks: Sequence[Mark] = ()
    ) -> None:
        """Release the lock, once; the renewer tries again if the server is unavailable."""
        lease = self.lease
        if lease is None:
            return
        can_come_again = self.task.acks_late or self._may_be_a_copy
        if ended and self.request.id and can_come_again and not self.outer:
            ttl = self.locks.settings.done_ttl
            marks = [*marks, ended_mark(self.holder, ttl, leaves_result=self._leaves_result)]
        try:
            # A retry's message was sent before this; a requeued one is sent after it.
            next_token = self._next_token(requeued=not ended) if keep_for else ""
            self.locks.run(self.locks.operations.release(lease, marks, keep_for, next_token))
        except LockUnavailable as error:
            logs.log_deferred_release(lease.name, error)
        # Clear only after the release: if a signal interrupts it, ``after_return`` releases again,
        # which is idempotent.
        unreleased.discard(self)
        self.lease = None
        if lease.woke_parked:
            waker_of(self.task.app).wake_due()

    def _clear_header(self) -> None:
        """Keep only the options, and a retry's reservation: a retry inherits the headers."""
        assert self.lease is not None
        kept = LockHeader(self.header.options)
        if self._keeps_reservation:
            kept = replace(kept, queued=self.lease.name, of_retry=True)
        if kept != self.header and not self.outer:
            self.request.headers = kept.write(self.request.headers)
