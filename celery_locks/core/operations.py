"""Acquire and renew, written once for ``Locks`` and ``AsyncLocks``; ``releasing.py`` has the rest.

Each operation is a generator that yields effects (``store/effects.py``); ``Locks`` runs it with
blocking calls, ``AsyncLocks`` with awaited ones. The error paths are here too: a lock that may have
been granted although no reply came is handed to the renewer, which releases it. No I/O.

More than 300 lines: the ways in which an acquire ends share the request and its error path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, cast

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.lease import NOT_ON_SERVER, BaseLease, LeaseBackend, PartLease, State
from celery_locks.core.reassertion import reassertion_of
from celery_locks.core.releasing import ReleaseOperations
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireOptions, AcquireRequest, L, new_token, request_of
from celery_locks.core.waiting import own_lease, wait_in_queue
from celery_locks.errors import (
    ForeignData,
    LockConflict,
    LockDeadlock,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.store.commands.locks import (
    AcquireExtras,
    LockCommands,
    Mark,
    budget_of,
    caller_of,
)
from celery_locks.store.commands.rates import RateCommands
from celery_locks.store.commands.replies import (
    Completed,
    Ended,
    GrantBesideOthers,
    GrantSeveral,
    Limited,
    Parked,
    Rejection,
    Renewal,
    RenewReply,
)
from celery_locks.store.effects import AsyncStore, Operation, Sleep, Store
from celery_locks.types import Conflict, Holder
from celery_locks.validation import check_name, check_ttl

# Unless ``may_have_executed``, the server did not execute the call, or (a deadlock) the wait has
# left the queue already.
_NOTHING_ACQUIRED = (
    LockDeadlock,
    LockUsageError,
    ServerRefused,
    ServerTooOld,
    ServerOutOfMemory,
    ForeignData,
)


_HAVE_LIMIT = (GrantBesideOthers, Conflict)


def _emit(kind: events.EventKind, request: AcquireRequest[Any], **detail: Any) -> None:
    """Emit an event of a request, with the fields that describe the requester."""
    events.emit(
        kind,
        request.spec.name,
        request.token,
        task=request.holder.task,
        task_id=request.holder.task_id,
        policy=request.policy,
        waited=now() - request.began,
        **detail,
    )


def _report_limits(request: AcquireRequest[Any], answer: int | Conflict | Rejection) -> None:
    """Emit an event if the holders of the lock have another limit than the request."""
    if isinstance(answer, _HAVE_LIMIT) and answer.held_limit:
        _emit("limits_differ", request, limit=request.spec.limit, held_limit=answer.held_limit)


def _join(whole: BaseLease, parts: Sequence[Any]) -> None:
    whole.parts = tuple(parts)
    for part in parts:
        part.join(whole)


class Operations(ReleaseOperations[L]):
    """The operations over one prefix and its shards, with those that release.

    ``backend`` is the ``Locks`` or ``AsyncLocks`` that the leases belong to; ``store`` is the one
    that runs the operations.
    """

    def __init__(
        self,
        backend: LeaseBackend,
        lease_class: type[L],
        store: Store | AsyncStore,
        commands: LockCommands,
    ) -> None:
        super().__init__(store.store_for_thread(), commands)
        self._backend = backend
        self._lease_class = lease_class
        self._unsubscribe = store.unsubscribe

    def acquire_by_name(
        self,
        names: str | Sequence[str],
        token: str,
        default_ttl: float,
        options: AcquireOptions,
        *,
        for_hold: bool = False,
    ) -> Operation[L | Conflict]:
        """Acquire, or enter again what the caller holds already, if that is ``reentrant``.

        Of several names it acquires all or none.

        ``for_hold``: the thread or asyncio task that acquires it also releases it.
        """
        request: AcquireRequest[L] = request_of(names, token, default_ttl, options, for_hold)
        if request.owner and request.reentrant:
            for lease in list(request.owner.leases.values()):  # another thread may release one
                is_same_lock = lease.name == request.spec.name and lease.backend is self._backend
                if is_same_lock and self._is_enterable(lease, request):
                    return self._enter(lease, token)
        answer = yield from self.acquire(request)
        assert not isinstance(
            answer, Ended | Completed | Limited | Parked
        )  # only requests with extras get it
        # A lease that is entered again has another token, and keeps its own callback.
        if not isinstance(answer, Conflict) and answer.token == token:
            answer.on_stop = options.get("on_stop")
        return answer

    def enter_hold(
        self,
        names: str | Sequence[str],
        token: str,
        default_ttl: float,
        options: AcquireOptions,
        required: bool,
    ) -> Operation[L | None]:
        """Acquire for a ``hold`` block; if others hold it, raise, or return None."""
        answer = yield from self.acquire_by_name(names, token, default_ttl, options, for_hold=True)
        if not isinstance(answer, Conflict):
            return answer
        if required:
            raise LockConflict(answer)
        return None

    def _is_enterable(self, lease: BaseLease, request: AcquireRequest[Any]) -> TypeGuard[L]:
        """Return True if the lease covers the request: one that is shared covers only such."""
        is_valid = lease.state in (State.HELD, State.SUSPENDED) and not lease.is_foreign()
        covers = request.spec.shared or not lease.shared
        return is_valid and covers and isinstance(lease, self._lease_class)

    def _enter(self, lease: L, token: str) -> L:
        lease.entries |= {token}
        return lease

    def acquire(self, request: AcquireRequest[L]) -> Operation[L | Conflict | Rejection]:
        names = [spec.name for spec, _ in request.parts] if request.also else ()
        if names and not self.commands.are_together(names):
            return (yield from self._acquire_in_turn(request))
        try:
            if request.spec.wait:
                answer, sent_at, valid_for = yield from wait_in_queue(
                    self.commands, request, _report_limits
                )
                lease = self._on_reply(request, answer, sent_at, valid_for)
            else:
                answer = yield self.commands.acquire(
                    request.spec, request.token, request.holder, request.extras, also=request.also
                )
                _report_limits(request, answer)
                lease = self._on_reply(request, answer, request.began)
            if request.extras and request.extras.rates and isinstance(lease, BaseLease):
                start_in = getattr(answer, "start_in", 0.0)  # of a delayed grant
                return (yield from self._wait_for_start(request, lease, start_in))
            return lease
        except BaseException as error:
            self._on_failed_acquire(request, error)
            raise
        finally:
            if request.spec.wait:
                self._unsubscribe(request.token)

    def _acquire_in_turn(self, request: AcquireRequest[L]) -> Operation[L | Conflict | Rejection]:
        """Acquire locks of several shards one by one; release them if one cannot be acquired.

        No call reaches two shards at once. All callers acquire in the order of the names, so they
        cannot block each other for ever, but they hold some of the locks while they wait.
        """
        leases: dict[str, L] = {}
        extras = request.extras and request.extras._replace(rates=())
        retried = AcquireExtras(published_by=extras.published_by) if extras else None
        others = tuple(spec.name for spec in request.also)
        try:
            for spec, token in sorted(request.parts):
                is_first = token == request.token
                left = spec.wait and max(0.001, request.began + spec.wait - now())
                answer = yield from self.acquire(
                    request._replace(
                        spec=spec._replace(wait=left),
                        token=token,
                        also=(),
                        holder=request.holder._replace(also=others if is_first else ()),
                        owner=request.owner if is_first else None,
                        lease_class=request.lease_class if is_first else cast(type[L], PartLease),
                        # In a prefork child too: the main process finds them later.
                        renewed_elsewhere=request.renewed_elsewhere and is_first,
                        extras=extras if is_first else retried,
                    )
                )
                if not isinstance(answer, BaseLease):
                    self._release_all_later(leases)
                    return answer
                leases[token] = answer
            whole = leases.pop(request.token)
            _join(whole, list(leases.values()))
            leases = {request.token: whole}
            if request.extras and request.extras.rates:
                return (yield from self._wait_for_start(request, whole, 0.0, decided=False))
            return whole
        except BaseException:
            self._release_all_later(leases)
            raise

    def _release_all_later(self, leases: Mapping[str, BaseLease]) -> None:
        for lease in leases.values():
            if lease.begin_release():
                self._defer_release(lease)

    def _on_reply(
        self,
        request: AcquireRequest[L],
        answer: int | Conflict | Rejection,
        sent_at: float,
        valid_for: float | None = None,
    ) -> L | Conflict | Rejection:
        """Turn the reply to a call of ``sent_at`` into a lease, a conflict or a rejection.

        A grant is valid for ``valid_for`` seconds, by default for the whole ttl.
        """
        if not isinstance(answer, int):
            return self._on_conflict(request, answer) if isinstance(answer, Conflict) else answer
        spec, token, holder, owner = request.spec, request.token, request.holder, request.owner
        lease_class = request.lease_class or self._lease_class
        lease = lease_class(spec, token, answer, sent_at, request.on_lost, valid_for)
        lease.backend, lease.task, lease.task_id = self._backend, holder.task, holder.task_id
        lease.holder = holder
        if isinstance(answer, GrantSeveral):
            further = zip(request.parts[1:], answer.fences[1:], strict=True)
            _join(lease, [PartLease(*part, fence, sent_at) for part, fence in further])
            for part_lease in lease.parts:
                part_lease.holder = holder
        if owner:
            lease.owner = owner
            owner.leases[token] = lease
        moment = now()
        if moment >= lease.deadline:
            # The machine may have slept since the call: a grant that has lapsed is not used.
            raise LockUnavailable(f"the grant of lock {spec.name!r} came after it had lapsed")
        if not request.renewed_elsewhere:
            for part in lease.parts:
                renewer.add(part, self.background_store, self.commands)
            # A slot that the queue handed over must be confirmed within a moment: renew it at once.
            renewer.add(lease, self.background_store, self.commands, moment if valid_for else None)
        if events.is_wanted("acquired"):
            _emit("acquired", request, fence=answer)
        return lease

    def _wait_for_start(
        self, request: AcquireRequest[L], lease: L, start_in: float, *, decided: bool = True
    ) -> Operation[L | Limited]:
        """Return the lease when the rates allow the start; release it if one does not.

        With the lock, one call has decided the rates unless one of them is in another shard. Then
        they are decided now, so that none is consumed while the lock is busy; several are asked
        before any of them is consumed.
        """
        assert request.extras
        rates = request.extras.rates
        if not (decided and self.commands.has_shard_of(lease.name, rates)):
            caller = caller_of(request.holder, request.token)
            for counts in (False, True) if len(rates) > 1 else (True,):
                for number, rate in enumerate(rates):
                    token = f"{request.token}-{number}"  # two rates may be in one shard
                    answer = yield RateCommands(self.commands).throttle(
                        rate, token, caller, counts=counts
                    )
                    if isinstance(answer, Limited):
                        yield from self.release(lease)
                        return answer
                    start_in = max(start_in, answer)
        if start_in:
            yield Sleep(start_in)
        return lease

    def _on_conflict(self, request: AcquireRequest[L], conflict: Conflict) -> L | Conflict:
        own = own_lease(conflict)
        if own and request.reentrant and self._is_enterable(own, request):
            return self._enter(own, request.token)
        if own:
            conflict = replace(conflict, is_own=True)
        _emit("conflict", request, conflict=conflict)
        return conflict

    def _on_failed_acquire(self, request: AcquireRequest[L], error: BaseException) -> None:
        """Release what the failed call may have acquired or queued, or may yet."""
        for _, token in request.parts:
            renewer.discard(token)
        if isinstance(error, LockDeadlock):
            _emit("deadlock", request, why=str(error))
        if request.owner:
            request.owner.leases.pop(request.token, None)
        may_have_executed = isinstance(error, LockUnavailable) and error.may_have_executed
        if may_have_executed or not isinstance(error, _NOTHING_ACQUIRED):
            once = request.extras.idempotency if request.extras else None
            if request.owner and isinstance(error, LockUnavailable):
                request.owner.change_id()
            # Remove a mark that says that the work has begun: it has not.
            marks = [Mark(once.mark, "", 0.0)] if once and once.reuse == "never" else ()
            for spec, token in request.parts:
                own_marks = marks if token == request.token else ()
                self.release_later(
                    spec.name, token, spec.ttl, marks=own_marks, repeat_until_expired=True
                )
        if isinstance(error, LockUnavailable):
            permanent = {"permanent": True} if error.is_permanent else {}
            _emit("unavailable", request, why=str(error), **permanent)

    def renew(self, lease: L, ttl: float | None) -> Operation[None]:
        if lease.is_foreign():
            raise LockUsageError(
                f"the lease on lock {lease.name!r} is the parent process's, which renews it itself"
            )
        if ttl is not None:
            check_ttl(ttl)
        lease.check_renewable()
        sent_at = now()
        parts: list[BaseLease] = [*lease.parts, lease]
        if ttl is not None:
            for part in parts:
                part.change_ttl(ttl, sent_at)
                renewer.reschedule(part.token)
        for part in parts:
            renewal = Renewal(part.name, part.token, lease.ttl)
            reply = yield self.commands.renew(
                [renewal], budget_of(lease.ttl), retimed=ttl is not None
            )
            if reply.lost and not (yield from self._reassert(part, reply)):
                renewer.discard(part.token)
                part.lose(NOT_ON_SERVER, reply.revoked.get(part.token))
                lease.check()  # raises LeaseLost
            part.mark_renewed(sent_at)
            renewer.reschedule(part.token)
            if reply.stops:
                lease.request_stop()

    def _reassert(self, lease: BaseLease, reply: RenewReply) -> Operation[bool]:
        """Assert a lease again that the server lost; return False if it is lost."""
        reassertion = reassertion_of(lease, self.commands, reply)
        if not reassertion:
            return False
        lost = yield self.commands.reassert([reassertion], budget_of(lease.ttl))
        if not lost:
            lease.emit("reasserted")
        return not lost

    def stop(self, name: str, token: str | None) -> Operation[tuple[Holder, ...]]:
        """Ask the holders, or the one with ``token``, to stop; return those asked."""
        check_name(name)
        asked_holders: tuple[Holder, ...] = yield self.commands.stop(
            name, token or "", request_id=new_token()
        )
        return asked_holders

    def close(self) -> None:
        """Make no further background calls but for held leases and pending releases."""
        renewer.stop_cleanup(self.background_store)
