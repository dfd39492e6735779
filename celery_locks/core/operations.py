"""Acquire, renew and release, written once for ``Locks`` and ``AsyncLocks``. No I/O.

Each operation is a generator that yields effects (``store/calls.py``); ``Locks`` runs it with
blocking calls, ``AsyncLocks`` with awaited ones. The error paths are here too: a lock that may have
been granted although no reply came is handed to the renewer, which releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.lease import (
    NOT_ON_SERVER,
    BaseLease,
    LeaseBackend,
    State,
)
from celery_locks.core.owners import Owner, current_owner
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest, L
from celery_locks.core.waiting import own_lease, wait_in_queue
from celery_locks.errors import (
    ForeignData,
    LockDeadlock,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.store.calls import Operation, Store
from celery_locks.store.commands.locks import LockCommands, budget_of
from celery_locks.store.commands.replies import Done
from celery_locks.store.commands.requests import Mark, Renewal
from celery_locks.types import Conflict, LockInfo
from celery_locks.validation import check_ttl

# The server did not execute the call, or (a deadlock) the wait has left the queue already.
_NOTHING_ACQUIRED = (
    LockDeadlock,
    LockUsageError,
    ServerRefused,
    ServerTooOld,
    ServerOutOfMemory,
    ForeignData,
)


# Seconds for which a mark that could not be written is tried again, so that completed work counts.
RETRY_MARKS_FOR = 600.0


def _requester_fields(request: AcquireRequest[Any]) -> dict[str, Any]:
    """Return the fields of an event that describe the requester."""
    task, task_id = request.holder.task, request.holder.task_id
    return {
        "task": task,
        "task_id": task_id,
        "policy": request.policy,
        "waited": now() - request.began,
    }


class Operations(Generic[L]):
    """The operations over one layout.

    ``backend`` renews and releases the leases; ``store`` is the one for the background threads;
    ``unsubscribe`` is that of the store that runs the operations.
    """

    def __init__(
        self,
        backend: LeaseBackend,
        lease_class: type[L],
        store: Store,
        commands: LockCommands,
        unsubscribe: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._lease_class = lease_class
        self._store = store
        self._unsubscribe = unsubscribe
        self.commands = commands

    def acquire(self, request: AcquireRequest[L]) -> Operation[L | Conflict | Done]:
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
        answer: int | Conflict | Done,
        sent_at: float,
        valid_for: float | None = None,
    ) -> L | Conflict | Done:
        """Turn the reply to a call of ``sent_at`` into a lease, a conflict, or what is done.

        A grant is valid for ``valid_for`` seconds, by default for the whole ttl.
        """
        if not isinstance(answer, int):
            return self._on_conflict(request, answer) if isinstance(answer, Conflict) else answer
        spec, holder, token, _, on_lost, owner, _, lease_class, renewed_elsewhere, _, _ = request
        lease = (lease_class or self._lease_class)(spec, token, answer, sent_at, on_lost, valid_for)
        lease.backend, lease.task, lease.task_id = self._backend, holder.task, holder.task_id
        if owner:
            lease.owner = owner
            owner.leases[token] = lease
        moment = now()
        if moment >= lease.deadline:
            # The machine may have slept since the call: a grant that has lapsed is not used.
            raise LockUnavailable(f"the grant of lock {spec.name!r} came after it had lapsed")
        if not renewed_elsewhere:
            # A claim lasts only a moment: renew it at once, while a slow network has time for that.
            renewer.add(lease, self._store, self.commands, moment if valid_for else None)
        if events.is_wanted("acquired"):
            events.emit("acquired", spec.name, token, answer, **_requester_fields(request))
        return lease

    def _on_conflict(self, request: AcquireRequest[L], conflict: Conflict) -> L | Conflict:
        own = own_lease(conflict)
        if own and request.reentrant and isinstance(own, self._lease_class) and _is_enterable(own):
            own.entries |= {request.token}
            return own
        if own:
            conflict = replace(conflict, is_own=True)
        events.emit(
            "conflict",
            conflict.name,
            request.token,
            conflict=conflict,
            **_requester_fields(request),
        )
        return conflict

    def _on_failed_acquire(self, request: AcquireRequest[L], error: BaseException) -> None:
        """Release what the failed call may have acquired or queued, or may yet."""
        renewer.discard(request.token)
        if isinstance(error, LockDeadlock):
            events.emit(
                "deadlock",
                request.spec.name,
                request.token,
                why=str(error),
                **_requester_fields(request),
            )
        if request.owner:
            request.owner.leases.pop(request.token, None)
        may_have_executed = isinstance(error, LockUnavailable) and error.may_have_executed
        if may_have_executed or not isinstance(error, _NOTHING_ACQUIRED):
            once = request.extras.idempotency if request.extras else None
            if request.owner and isinstance(error, LockUnavailable):
                request.owner.change_id()
            # Remove a mark that says that the work has begun: it has not.
            marks = [Mark(once.mark, "", 0.0)] if once and once.reuse == "never" else ()
            renewer.release_later(
                PendingRelease(
                    request.spec.name,
                    request.token,
                    self._store,
                    self.commands,
                    now() + request.spec.ttl,
                    repeat_until_expired=True,
                    marks=marks,
                )
            )
        if isinstance(error, LockUnavailable):
            permanent = {"permanent": True} if error.is_permanent else {}
            about = {"why": str(error), **permanent, **_requester_fields(request)}
            events.emit("unavailable", request.spec.name, request.token, **about)

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
        lost = yield self.commands.renew([renewal], budget_of(lease.ttl), retimed=ttl is not None)
        if lost:
            renewer.discard(lease.token)
            lease.lose(NOT_ON_SERVER, lost.revoked.get(lease.token))
            lease.check()
        lease.mark_renewed(sent_at)
        renewer.reschedule(lease.token)
        if lost.stops:
            lease.request_stop()

    def release(
        self,
        lease: L,
        marks: Sequence[Mark] = (),
        keep_for: float = 0.0,
        next_token: str = "",
        entry: str = "",
    ) -> Operation[bool]:
        """Release; return True if the lock was ours until now.

        Leave the ``marks`` behind. ``keep_for`` leaves the slot taken for that many seconds, under
        the token ``next_token`` or one that nobody knows. If the lease was acquired reentrantly,
        only one entry ends: ``entry``, if it is one.
        """
        if lease.entries and not lease.is_foreign():
            lease.entries -= {entry} & lease.entries or {min(lease.entries)}
            return True
        try:
            if not lease.begin_release():
                return False
            renewer.discard(lease.token)
            kept_seconds, history_note = lease.release_arguments(keep_for)
            was_ours: bool = yield self.commands.release(
                lease.name,
                lease.token,
                keep=kept_seconds,
                keep_as=next_token,
                marks=marks,
                past=history_note,
                budget=budget_of(lease.ttl),
            )
            if events.is_wanted("released"):
                lease.emit("released", held_for=lease.held_for, ours=was_ours)
            return was_ours
        except BaseException:
            self._defer_release(lease, marks, keep_for, next_token)
            raise

    def _defer_release(
        self,
        lease: BaseLease,
        marks: Sequence[Mark] = (),
        keep_for: float = 0.0,
        next_token: str = "",
    ) -> None:
        """Hand the release to the renewer: the call failed, or a time limit interrupted it."""
        if lease.is_foreign():
            return
        renewer.discard(lease.token)
        if lease.owner:
            lease.owner.leases.pop(lease.token, None)
            lease.owner.change_id()
        kept_seconds, history_note = lease.release_arguments(keep_for)
        # Not the lease's deadline: another process may have renewed it since.
        give_up_at = now() + lease.ttl
        give_up_at += min(RETRY_MARKS_FOR, max((mark.ttl for mark in marks), default=0.0))
        renewer.release_later(
            PendingRelease(
                lease.name,
                lease.token,
                self._store,
                self.commands,
                give_up_at,
                kept_until=now() + kept_seconds,
                next_token=next_token,
                marks=marks,
                history_note=history_note,
            )
        )

    def exit_hold(self, lease: L, failed: bool, entry: str) -> Operation[None]:
        """End a ``hold`` block: raise a loss unless the block itself raises."""
        lost = lease.state is State.LOST
        # If the server cannot be reached, the renewer tries again and has logged it.
        with suppress(LockUnavailable):
            yield from self.release(lease, entry=entry)
        if lost and not failed:
            raise lease.loss("it ended before the block did; another may have run beside it")

    def release_if_acquired(self, token: str) -> None:
        """Have the renewer release what was acquired with this token, because its caller cannot."""
        for entered in list(current_owner().leases.values()):
            entered.entries -= {token}
        lease = renewer.lease_of(token)
        if lease and lease.begin_release():
            self._defer_release(lease)

    def list_locks(self) -> Operation[list[LockInfo]]:
        """Return every lock that has holders or waiters, each once."""
        found: dict[str, LockInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield self.commands.page(cursor)
            for info in page.locks:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())

    def reenter(self, name: str, owner: Owner, token: str) -> L | None:
        """Enter the owner's lease of this lock once more; None if it has none from this backend."""
        for lease in list(owner.leases.values()):  # another thread may release one
            is_same_lock = lease.name == name and lease.backend is self._backend
            if is_same_lock and isinstance(lease, self._lease_class) and _is_enterable(lease):
                lease.entries |= {token}
                return lease
        return None


def _is_enterable(lease: BaseLease) -> bool:
    return lease.state in (State.HELD, State.SUSPENDED) and not lease.is_foreign()
