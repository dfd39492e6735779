"""One run of a task under its lock: acquire, run, release. What if not: ``refusal.py``.

Everything of one execution lives in an :class:`Execution`, never on the task object, which threads
share. The name is computed once, from the arguments as they came. The lock is given back in the
``finally`` of the call, which is before Celery publishes the next link of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from celery._state import get_current_task
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import maybe_make_aware

from celery_locks import logs
from celery_locks.clock import now
from celery_locks.core.idempotency import Once
from celery_locks.core.lease import Lease
from celery_locks.core.owners import owner_here, set_task_lookup
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockDeadlock, LockUnavailable
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.headers import NO_HEADER, LockHeader, given_token
from celery_locks.integration.idempotency import once_of
from celery_locks.integration.interrupt import InjectedError, RemotelyRenewedLease, interrupter_here
from celery_locks.integration.naming import lock_name
from celery_locks.integration.not_acquired import NotAcquired
from celery_locks.integration.reservation import release_reservation, replaced_by
from celery_locks.options import LockOptions
from celery_locks.store.commands.locks import (
    AcquireExtras,
    Done,
    Mark,
    budget_of,
    ended_mark,
    reservation_token,
)
from celery_locks.types import Conflict, Holder, LockSpec, this_process

_current: ContextVar[Execution | None] = ContextVar("celery_locks_execution", default=None)
# Those of this process that have got a lock and not given it back.
unreleased: set[Execution] = set()


def current_lease() -> Lease | None:
    """The lease that the task running here holds; None outside, and where it runs unlocked."""
    execution = _current.get()
    return execution.lease if execution else None


def current_execution() -> Execution | None:
    return _current.get()


def _task_here() -> Holder | None:
    """The task whose code runs here, also in a thread that was started with its context."""
    if execution := _current.get():
        task, request = execution.task, vars(execution).get("request")
    else:
        task = get_current_task() if _is_worker else None
        request = task.request if task else None
    if request is None or not request.id:
        return None
    process = this_process()
    return Holder(
        task_id=request.id,
        task=task.name,
        retries=request.retries or 0,
        replaced=request.replaced_task_nesting or 0,
        worker=request.hostname,
        host=process.host,
        pid=process.pid,
        nested=True,
    )


set_task_lookup(_task_here)
# Asking Celery takes longer than all else that a hold does before its call: only workers ask.
_is_worker = False


def look_for_plain_tasks(**_: Any) -> None:
    """In a worker: what the code of tasks without a lock holds is recorded as theirs too."""
    global _is_worker
    _is_worker = True


class Execution:
    """A task, its request and its lock."""

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
        """``within`` is the run whose body called its own task directly: one message, two calls."""
        self.task = task
        self.request = request
        self.within = within
        self.args = args
        self.kwargs = kwargs
        self.header = LockHeader.read(request.headers)
        self.options: LockOptions = task.lock_options(self.header.options)
        # What the message holds in the queue is ours to give back, unless it goes on with a copy.
        self.owns_reservation = bool(self.queued()[1])

    def run(self, call: Callable[..., Any]) -> Any:
        """The result of the task, or of not running it."""
        name = None
        if self.options.enabled:
            name = lock_name(self.task, self.options, self.args, self.kwargs)
        if name is None:
            return self._call(call, under=self._locked_around())
        if self.within and (holding := self.within.holding(name)):
            return self._call(call, under=holding)
        self._owner = owner_here()
        self.holder = self._holder()
        self.locks: AppLocks = locks_of(self.task.app)
        if self.options.once:
            self.once = once_of(self.task, self.options, name)
        spec = self.options.spec.named(name)  # refuses a name that the store could not have
        try:
            answer = self._acquire(name, spec)
            if isinstance(answer, Lease):
                self.lease = answer
                unreleased.add(self)
        except LockUnavailable as error:
            NotAcquired(self, name).unavailable(error)
            return self._call(call)
        except LockDeadlock:
            raise  # whatever on_conflict says: later it would be the same, and nothing is queued
        except BaseException:
            # A time limit may strike between the grant and our knowing of it.
            self._abandon(name)
            raise
        if isinstance(answer, Done):
            return NotAcquired(self, name).done(answer)
        if isinstance(answer, Conflict):
            return NotAcquired(self, name).conflict(answer)
        answer.on_stop = self._interrupter.stop
        if self.header is not NO_HEADER or self.options.scope != "running":
            self._release_other_reservation(name)
            self._forget_conflicts()
        return self._run_locked(call, answer)

    def forget_request(self) -> None:
        """It knows us too: both, and the call's arguments, would wait for the garbage collector."""
        if self.lease is None:
            del self.request

    def _abandon(self, name: str) -> None:
        renewer.discard(self.token)
        until = now() + self.options.ttl
        renewer.release_later(
            name, self.token, self.locks.background_store, self.locks.commands, until
        )

    def holding(self, name: str) -> Execution | None:
        """Of this call and those it is within, the one that has this lock."""
        if self.lease and self.lease.name == name:
            return self
        return self.within.holding(name) if self.within else None

    def _locked_around(self) -> Execution | None:
        """The nearest call around us that has a lock. Celery 5.3 gives an inner call no task id."""
        around = self.within
        while around and not around.lease:
            around = around.within
        return around

    def _acquire(self, name: str, spec: LockSpec) -> Lease | Conflict | Done:
        # The token that the main process gave us, which keeps the lock, is the outermost call's.
        given = "" if self.within else given_token(self.request.properties)
        self.token = given or new_token()
        if not self.within:
            # Redelivered, delayed, or requeued by us: the ways in which a message comes twice.
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
        """What more there is to say; of most messages nothing."""
        return AcquireExtras(
            reject_if_completed=self._may_be_a_copy or bool(self.queued()[1]),
            release_on_grant=self._reservation_to_release(name),
            supersede=self._replaced(),
            idempotency=self.once.question if self.once else None,
        )

    def queued(self) -> tuple[str, str]:
        """Name and token of the lock that this message held in the queue."""
        return ("", "") if self.within else self.header.reservation(self.request.id)

    def _reservation_to_release(self, name: str) -> tuple[str, str]:
        """The queue's lock, where it is another than the run's and the same call can free it."""
        place, token = self.queued()
        root = self.locks.commands.root
        return (place, token) if token and place != name and root(place) == root(name) else ("", "")

    def _release_other_reservation(self, name: str) -> None:
        """Published under a key of another shard, by a release with other options: freed apart."""
        place, token = self.queued()
        if token and place != name and not self._reservation_to_release(name)[1]:
            self.release_reservation()
        self.owns_reservation = False

    def _replaced(self) -> tuple[str, float]:
        """The message in whose place this one was published, and how long to remember that.

        The publisher wrote it into the reservation: a header could name anybody's task.
        """
        name, token = self.queued()
        if not token or not self.header.replaced:
            return "", 0.0
        commands = self.locks.commands
        call = commands.locate(commands.root(name), [token], budget_of(self.options.ttl))
        found = self.locks.perform(call).get(token)
        return replaced_by(found[1]) if found else ("", 0.0)

    def _holder(self) -> Holder:
        process, request = this_process(), self.request
        return Holder(
            task_id=request.id,
            task=self.task.name,
            retries=request.retries or 0,
            replaced=request.replaced_task_nesting or 0,
            worker=request.hostname,
            host=process.host,
            pid=process.pid,
            owner=self._owner.id,
        )

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
            self._leaves_result = False  # the next attempt does, whose message is sent
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
            # Terminated or exiting: the message may come again, and must then run, unless it is one
            # that is never to be begun twice.
            ended, marks = False, []
            raise
        finally:
            self.release(keep, ended, marks)

    def _call_armed(self, call: Callable[..., Any], lease: Lease) -> Any:
        """A loss is raised in the call itself, and not in what follows, which others rely on."""
        options = self.options
        token = _current.set(self)
        try:
            self._interrupter.arm(
                lease, raises=options.on_lost == "raise", stops=options.on_stop == "raise"
            )
            result = call(*self.args, **self.kwargs)
            self._interrupter.disarm()
            return result
        except BaseException:
            # Again, if it was the disarming that a time limit struck.
            self._interrupter.disarm()
            raise
        finally:
            _current.reset(token)

    def _call(self, call: Callable[..., Any], under: Execution | None = None) -> Any:
        """Without a lock of its own."""
        token = _current.set(under or self)
        try:
            return call(*self.args, **self.kwargs)
        finally:
            _current.reset(token)

    def _kept_over(self, retry: Retry) -> float:
        """With ``on_retry="keep"``: until the next attempt is due, and a ttl more for the queue.

        With ``queued+running`` the next attempt has its place in the queue like any message.
        """
        if self.options.on_retry != "keep" and not self._keeps_reservation:
            return 0.0
        when = retry.when or 0
        if isinstance(when, datetime):
            # One that is naive is in UTC for Celery, wherever the worker is.
            aware = maybe_make_aware(when, self.task.app.timezone)
            when = (aware - datetime.now(UTC)).total_seconds()
        beyond = self.options.pending_ttl if self._keeps_reservation else self.options.ttl
        return max(0.0, float(when)) + beyond

    @property
    def _keeps_reservation(self) -> bool:
        return self.options.scope == "queued+running" and not self.within and bool(self.request.id)

    @property
    def _kept_as(self) -> str:
        """The token that the next attempt's message has in the meantime: a revoke frees that.

        With ``queued`` this is the token of another lock, the one from publish to start.
        """
        is_its = self.options.scope != "queued" and not self.within and self.request.id
        return reservation_token(self.request.id, again=True) if is_its else ""

    def release(self, keep: float = 0.0, ended: bool = True, marks: Sequence[Mark] = ()) -> None:
        """Give the lock back, once; what cannot be reached now is the keeper's to try again."""
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
            logs.release_deferred(lease.name, error)
        # Not before: what strikes on the way leaves it to after_return, and twice does no harm.
        unreleased.discard(self)
        self.lease = None

    def release_reservation(self) -> None:
        """This message will not run, and not come back: others may queue."""
        self.owns_reservation = False
        release_reservation(*self.queued(), self.task.app)

    def _forget_conflicts(self) -> None:
        """A retry inherits the headers: what was about getting here must not travel on."""
        assert self.lease is not None
        kept = LockHeader(self.header.options)
        if self._keeps_reservation:
            kept = replace(kept, queued=self.lease.name, of_retry=True)
        if kept != self.header and not self.within:
            self.request.headers = kept.write(self.request.headers)
