"""One run of a task under its lock: acquire, run, release. Without the lock: ``not_acquired.py``.

The state of one execution is in an :class:`Execution`, never on the task object, which threads
share. The name is computed once, from the arguments as they came. The lock is released in the
``finally`` of the call, which is before Celery publishes the next link of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_locks import logs
from celery_locks.clock import now
from celery_locks.core.idempotency import Once
from celery_locks.core.lease import Lease
from celery_locks.core.owners import owner_here
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockDeadlock, LockUnavailable
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.current_execution import current, holder_of
from celery_locks.integration.headers import NO_HEADER, LockHeader, given_token
from celery_locks.integration.idempotency import once_of
from celery_locks.integration.interrupt import InjectedError, RemotelyRenewedLease, interrupter_here
from celery_locks.integration.lock_name import lock_name
from celery_locks.integration.not_acquired import NotAcquired
from celery_locks.integration.reservation import NO_RESERVATION, Reservation, replaced_by
from celery_locks.integration.times import seconds_until
from celery_locks.options import LockOptions
from celery_locks.store.commands.locks import budget_of
from celery_locks.store.commands.replies import Completed, Ended, Rejection
from celery_locks.store.commands.requests import AcquireExtras, Mark, ended_mark, reservation_token
from celery_locks.types import Conflict, LockSpec

# The executions of this process that have acquired a lock and not released it.
unreleased: set[Execution] = set()


class Execution:
    """One run of a task: the task, its request, its lock and the message's reservation."""

    lease: Lease | None = None
    token = ""
    once: Once | None = None
    _may_be_a_copy = False
    _leaves_result = True

    def __init__(
        self,
        task: Any,
        request: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        within: Execution | None = None,
    ) -> None:
        """Prepare a run; ``within`` is the run whose body called its own task directly."""
        self.task = task
        self.request = request
        self.within = within
        self.args = args
        self.kwargs = kwargs
        self.header = LockHeader.read(request.headers)
        self.options: LockOptions = task.lock_options(self.header.options)
        # A call within a run has the same message, whose reservation is the outer run's.
        self.reservation = NO_RESERVATION
        if self.header is not NO_HEADER and not within:
            self.reservation = Reservation(*self.header.reservation(request.id), task.app)

    def run(self, call: Callable[..., Any]) -> Any:
        """Run the task, and return its result or the result of not running it."""
        name = None
        if self.options.enabled:
            name = lock_name(self.task, self.options, self.args, self.kwargs)
        if name is None:
            return self._call(call, under=self._locked_around())
        if self.within and (holding := self.within.holding(name)):
            return self._call(call, under=holding)
        self._owner = owner_here()
        self.holder = holder_of(self.task, self.request, owner=self._owner.id)
        self.locks: AppLocks = locks_of(self.task.app)
        if self.options.once:
            self.once = once_of(self.task, self.options, name)
        spec = self.options.spec.named(name)  # raises for a name that the store does not accept
        try:
            answer = self._acquire(name, spec)
            if isinstance(answer, Lease):
                self.lease = answer
                unreleased.add(self)
        except LockUnavailable as error:
            NotAcquired(self, name).unavailable(error)
            return self._call(call)
        except LockDeadlock:
            raise  # whatever on_conflict says: trying later would not help, and nothing is queued
        except BaseException:
            # A time limit may interrupt between the grant and the assignment.
            self._release_if_acquired(name)
            raise
        if isinstance(answer, Completed):
            return NotAcquired(self, name).completed(answer.mark)
        if isinstance(answer, Ended):
            return NotAcquired(self, name).ended(answer)
        if isinstance(answer, Conflict):
            return NotAcquired(self, name).conflict(answer)
        answer.on_stop = self._interrupter.stop
        if self.header is not NO_HEADER or self.options.scope != "running":
            self.reservation.on_acquired(name)
            self._clear_header()
        return self._run_locked(call, answer)

    def forget_request(self) -> None:
        """Break the reference cycle with the request, so that no garbage collection is needed."""
        if self.lease is None:
            del self.request

    def _release_if_acquired(self, name: str) -> None:
        renewer.discard(self.token)
        until = now() + self.options.ttl
        renewer.release_later(
            name, self.token, self.locks.background_store, self.locks.commands, until
        )

    def holding(self, name: str) -> Execution | None:
        """Return the call that holds this lock, of this one and those around it."""
        if self.lease and self.lease.name == name:
            return self
        return self.within.holding(name) if self.within else None

    def _locked_around(self) -> Execution | None:
        """Return the nearest enclosing call with a lock: Celery 5.3 gives inner calls no id."""
        around = self.within
        while around and not around.lease:
            around = around.within
        return around

    def _acquire(self, name: str, spec: LockSpec) -> Lease | Conflict | Rejection:
        # The token from the main process, which renews the lock, is the outermost call's.
        given = "" if self.within else given_token(self.request.properties)
        self.token = given or new_token()
        if not self.within:
            # Redelivered, delayed, or requeued: the ways in which a message comes twice.
            redelivered = (self.request.delivery_info or {}).get("redelivered")
            self._may_be_a_copy = bool(redelivered or self.request.eta or self.header.since)
        self._interrupter = interrupter_here()
        has_more = self._may_be_a_copy or self.header is not NO_HEADER or self.once
        ask = AcquireRequest(
            spec,
            self.holder,
            self.token,
            now(),
            self._interrupter.lost,
            self._owner,
            False,
            RemotelyRenewedLease if given else Lease,
            bool(given),
            self._extras(name) if has_more else None,
            self.options.on_conflict,
        )
        return self.locks.take(ask)

    def _extras(self, name: str) -> AcquireExtras:
        """Return the additional checks and effects of the acquire; most messages have none."""
        return AcquireExtras(
            reject_if_ended=self._may_be_a_copy or bool(self.reservation.token),
            release_on_grant=self.reservation.freed_by(name),
            supersede=self._replaced(),
            idempotency=self.once.question if self.once else None,
        )

    def _replaced(self) -> tuple[str, float]:
        """Look up the message that this one replaced, and how long to remember it.

        The publisher wrote it into the reservation: a header could name any task.
        """
        name, token = self.reservation.name, self.reservation.token
        if not token or not self.header.replaced:
            return "", 0.0
        commands = self.locks.commands
        call = commands.locate(commands.root(name), [token], budget_of(self.options.ttl))
        found = self.locks.perform(call).get(token)
        return replaced_by(found[1]) if found else ("", 0.0)

    def _run_locked(self, call: Callable[..., Any], lease: Lease) -> Any:
        keep, ended = 0.0, True
        marks = self.once.not_ended() if self.once else []
        try:
            result = self._call_armed(call, lease)
            if self.once:
                marks = [self.once.done(lease.token, result)]
            return result
        except Retry as retry:
            keep = self._kept_over(retry)
            self._leaves_result = False  # the next attempt stores one; its message is sent
            raise
        except Reject:
            ended = False
            raise
        except InjectedError as error:
            if self.once:
                marks = self.once.failed(lease.token, error.plain)
            raise error.plain from None
        except Ignore:
            self._leaves_result = False
            raise
        except Exception as error:
            if self.once:
                marks = self.once.failed(lease.token, error)
            raise
        except BaseException:
            # Terminated or exiting: the message may come again, and must then run.
            ended, marks = False, []
            raise
        finally:
            self.release(keep, ended, marks)

    def _call_armed(self, call: Callable[..., Any], lease: Lease) -> Any:
        """Run the task's code; a loss is raised in it and never in the code that follows."""
        options = self.options
        token = current.set(self)
        try:
            self._interrupter.arm(
                lease, raises=options.on_lost == "raise", stops=options.on_stop == "raise"
            )
            result = call(*self.args, **self.kwargs)
            self._interrupter.disarm()
            return result
        except BaseException:
            # Again, in case a time limit interrupted the first disarm().
            self._interrupter.disarm()
            raise
        finally:
            current.reset(token)

    def _call(self, call: Callable[..., Any], under: Execution | None = None) -> Any:
        """Run the task's code without a lock of its own."""
        token = current.set(under or self)
        try:
            return call(*self.args, **self.kwargs)
        finally:
            current.reset(token)

    def _kept_over(self, retry: Retry) -> float:
        """Seconds to keep the lock for a retry: until it is due, and a ttl more for the queue.

        0 unless ``on_retry="keep"``. With ``queued+running`` the next attempt has a reservation
        like any message.
        """
        if self.options.on_retry != "keep" and not self._keeps_reservation:
            return 0.0
        beyond = self.options.pending_ttl if self._keeps_reservation else self.options.ttl
        return seconds_until(retry.when, self.task.app) + beyond

    @property
    def _keeps_reservation(self) -> bool:
        return self.options.scope == "queued+running" and not self.within and bool(self.request.id)

    @property
    def _kept_as(self) -> str:
        """The token of the next attempt's reservation, which a revoke releases.

        Empty with ``queued``, where the reservation is another lock than the run's.
        """
        has_token = self.options.scope != "queued" and not self.within and self.request.id
        return reservation_token(self.request.id, again=True) if has_token else ""

    def release(self, keep: float = 0.0, ended: bool = True, marks: Sequence[Mark] = ()) -> None:
        """Release the lock, once; the renewer tries again if the server is unavailable."""
        lease = self.lease
        if lease is None:
            return
        can_come_again = self.task.acks_late or self._may_be_a_copy
        if ended and self.request.id and can_come_again and not self.within:
            ttl = self.locks.settings.done_ttl
            marks = [*marks, ended_mark(self.holder, ttl, leaves_result=self._leaves_result)]
        try:
            self.locks.give_back(lease, marks, keep, self._kept_as if keep else "")
        except LockUnavailable as error:
            logs.log_deferred_release(lease.name, error)
        # Clear only after the release: if a signal interrupts it, ``after_return`` releases again,
        # which is idempotent.
        unreleased.discard(self)
        self.lease = None

    def _clear_header(self) -> None:
        """Keep only the options, and a retry's reservation: a retry inherits the headers."""
        assert self.lease is not None
        kept = LockHeader(self.header.options)
        if self._keeps_reservation:
            kept = replace(kept, queued=self.lease.name, of_retry=True)
        if kept != self.header and not self.within:
            self.request.headers = kept.write(self.request.headers)
