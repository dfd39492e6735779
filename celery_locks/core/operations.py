"""Acquire and renew, written once for ``Locks`` and ``AsyncLocks``; ``releasing.py`` has the rest.

Each operation is a generator that yields effects (``store/calls.py``); ``Locks`` runs it with
blocking calls, ``AsyncLocks`` with awaited ones. The error paths are here too: a lock that may have
been granted although no reply came is handed to the renewer, which releases it. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.lease import NOT_ON_SERVER, BaseLease, LeaseBackend, State
from celery_locks.core.pending_releases import PendingRelease
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
from celery_locks.store.calls import AsyncStore, Operation, Store
from celery_locks.store.commands.locks import LockCommands, budget_of
from celery_locks.store.commands.replies import Completed, Ended, Rejection
from celery_locks.store.commands.requests import Mark, Renewal
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
        name: str,
        token: str,
        default_ttl: float,
        options: AcquireOptions,
        *,
        for_hold: bool = False,
    ) -> Operation[L | Conflict]:
        """Acquire, or enter again what the caller holds already, if that is ``reentrant``.

        ``for_hold``: the thread or asyncio task that acquires it also releases it.
        """
        request: AcquireRequest[L] = request_of(name, token, default_ttl, options, for_hold)
        if request.owner and request.reentrant:
            for lease in list(request.owner.leases.values()):  # another thread may release one
                is_same_lock = lease.name == name and lease.backend is self._backend
                if is_same_lock and self._is_enterable(lease):
                    return self._enter(lease, token)
        answer = yield from self.acquire(request)
        assert not isinstance(answer, Ended | Completed)  # only requests with extras get it
        # A lease that is entered again has another token, and keeps its own callback.
        if not isinstance(answer, Conflict) and answer.token == token:
            answer.on_stop = options.get("on_stop")
        return answer

    def enter_hold(
        self, name: str, token: str, default_ttl: float, options: AcquireOptions, required: bool
    ) -> Operation[L | None]:
        """Acquire for a ``hold`` block; if others hold it, raise, or return None."""
        answer = yield from self.acquire_by_name(name, token, default_ttl, options, for_hold=True)
        if not isinstance(answer, Conflict):
            return answer
        if required:
            raise LockConflict(answer)
        return None

    def _is_enterable(self, lease: BaseLease) -> TypeGuard[L]:
        is_valid = lease.state in (State.HELD, State.SUSPENDED) and not lease.is_foreign()
        return is_valid and isinstance(lease, self._lease_class)

    def _enter(self, lease: L, token: str) -> L:
        lease.entries |= {token}
        return lease

    def acquire(self, request: AcquireRequest[L]) -> Operation[L | Conflict | Rejection]:
        try:
            if request.spec.wait:
                answer, sent_at, valid_for = yield from wait_in_queue(self.commands, request)
                return self._on_reply(request, answer, sent_at, valid_for)
            call = self.commands.acquire(
                request.spec, request.token, request.holder, request.extras
            )
            return self._on_reply(request, (yield call), request.began)
        except BaseException as error:
            self._on_failed_acquire(request, error)
            raise
        finally:
            if request.spec.wait:
                self._unsubscribe(request.token)

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
        if owner:
            lease.owner = owner
            owner.leases[token] = lease
        moment = now()
        if moment >= lease.deadline:
            # The machine may have slept since the call: a grant that has lapsed is not used.
            raise LockUnavailable(f"the grant of lock {spec.name!r} came after it had lapsed")
        if not request.renewed_elsewhere:
            # A slot that the queue handed over must be confirmed within a moment: renew it at once.
            renewer.add(lease, self._background_store, self.commands, moment if valid_for else None)
        if events.is_wanted("acquired"):
            _emit("acquired", request, fence=answer)
        return lease

    def _on_conflict(self, request: AcquireRequest[L], conflict: Conflict) -> L | Conflict:
        own = own_lease(conflict)
        if own and request.reentrant and self._is_enterable(own):
            return self._enter(own, request.token)
        if own:
            conflict = replace(conflict, is_own=True)
        _emit("conflict", request, conflict=conflict)
        return conflict

    def _on_failed_acquire(self, request: AcquireRequest[L], error: BaseException) -> None:
        """Release what the failed call may have acquired or queued, or may yet."""
        renewer.discard(request.token)
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
            self.release_grant_later(request.spec.name, request.token, request.spec.ttl, marks)
        if isinstance(error, LockUnavailable):
            permanent = {"permanent": True} if error.is_permanent else {}
            _emit("unavailable", request, why=str(error), **permanent)

    def release_grant_later(
        self, name: str, token: str, ttl: float, marks: Sequence[Mark] = ()
    ) -> None:
        """Have the background thread release what this token has acquired, or may yet acquire."""
        renewer.release_later(
            PendingRelease(
                name,
                token,
                self._background_store,
                self.commands,
                now() + ttl,
                repeat_until_expired=True,
                marks=marks,
            )
        )

    def renew(self, lease: L, ttl: float | None) -> Operation[None]:
        if lease.is_foreign():
            raise LockUsageError(
                f"the lease on lock {lease.name!r} is the parent process's, which renews it itself"
            )
        if ttl is not None:
            check_ttl(ttl)
        lease.check_renewable()
        sent_at = now()
        if ttl is not None:
            lease.change_ttl(ttl, sent_at)
            renewer.reschedule(lease.token)
        renewal = Renewal(lease.name, lease.token, lease.ttl)
        reply = yield self.commands.renew([renewal], budget_of(lease.ttl), retimed=ttl is not None)
        if reply.lost:
            renewer.discard(lease.token)
            lease.lose(NOT_ON_SERVER, reply.revoked.get(lease.token))
            lease.check()  # raises LeaseLost
        lease.mark_renewed(sent_at)
        renewer.reschedule(lease.token)
        if reply.stops:
            lease.request_stop()

    def stop(self, name: str, token: str | None) -> Operation[tuple[Holder, ...]]:
        """Ask the holders, or the one with ``token``, to stop; return those asked."""
        check_name(name)
        asked_holders: tuple[Holder, ...] = yield self.commands.stop(
            name, token or "", request_id=new_token()
        )
        return asked_holders

    def close(self) -> None:
        """Make no further background calls but for held leases and pending releases."""
        renewer.stop_cleanup(self._background_store)
