"""Acquire, renew and release, written once for ``Locks`` and ``AsyncLocks``. No I/O.

Each operation is a generator that yields effects (``store/calls.py``); ``Locks`` runs it with
blocking calls, ``AsyncLocks`` with awaited ones. The error paths are here too: a lock that may have
been granted although no reply came is handed to the renewer, which releases it.

An acquire without waiting and a release are one call each. The parts before and after the call
are methods of their own (``on_reply``, ``on_no_reply``; ``prepare_release``, ``finish_release``,
``defer_release``) for tasks: a short task would spend much of its time in generators. All of them
share the state of one class, so this file is a little long.
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
from celery_locks.core.owners import Owner, owner_here
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
from celery_locks.store.calls import Call, Operation, Store
from celery_locks.store.commands.locks import LockCommands, budget_of
from celery_locks.store.commands.replies import Rejection
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

    def acquire(self, request: AcquireRequest[L]) -> Operation[L | Conflict | Rejection]:
        try:
            if request.spec.wait:
                answer, sent_at, granted = yield from wait_in_queue(self.commands, request)
                return self.on_reply(request, answer, sent_at, granted)
            call = self.commands.acquire(
                request.spec, request.token, request.holder, request.extras
            )
            return self.on_reply(request, (yield call), request.began)
        except BaseException as error:
            self.on_no_reply(request, error)
            raise
        finally:
            if request.spec.wait:
                self._unsubscribe(request.token)

    def on_reply(
        self,
        request: AcquireRequest[L],
        answer: int | Conflict | Rejection,
        sent_at: float,
        granted: float | None = None,
    ) -> L | Conflict | Rejection:
        """Turn the reply to a call of ``sent_at`` into a lease, a conflict or a rejection.

        A grant is valid for ``granted`` seconds, by default for the whole ttl.
        """
        if not isinstance(answer, int):
            return self._not_granted(request, answer) if isinstance(answer, Conflict) else answer
        spec, holder, token, _, on_lost, owner, _, lease_class, renewed_elsewhere, _, _ = request
        lease = (lease_class or self._lease_class)(spec, token, answer, sent_at, on_lost, granted)
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
            renewer.add(lease, self._store, self.commands, moment if granted else None)
        if events.is_wanted("acquired"):
            events.emit("acquired", spec.name, token, answer, **_requester_fields(request))
        return lease

    def _not_granted(self, request: AcquireRequest[L], conflict: Conflict) -> L | Conflict:
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

    def on_no_reply(self, request: AcquireRequest[L], error: BaseException) -> None:
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
                request.spec.name,
                request.token,
                self._store,
                self.commands,
                now() + request.spec.ttl,
                repeat_until_expired=True,
                marks=marks,
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
            lease.retime(ttl, sent_at)
            renewer.reschedule(lease.token)
        renewal = Renewal(lease.name, lease.token, lease.ttl)
        reply = yield self.commands.renew([renewal], budget_of(lease.ttl), retimed=ttl is not None)
        if reply.lost:
            renewer.discard(lease.token)
            lease.lose(NOT_ON_SERVER, reply.revoked.get(lease.token))
            lease.check()
        lease.mark_renewed(sent_at)
        renewer.reschedule(lease.token)
        if reply.stops:
            lease.request_stop()

    def release(self, lease: L, marks: Sequence[Mark] = (), entry: str = "") -> Operation[bool]:
        """Release; return True if the lock was ours until now. ``marks`` as in the command.

        If the lease was acquired reentrantly, only one entry ends: ``entry``, if it is one.
        """
        if lease.entries and not lease.is_foreign():
            lease.entries -= {entry} & lease.entries or {min(lease.entries)}
            return True
        try:
            call = self.prepare_release(lease, marks)
            return call is not None and self.finish_release(lease, (yield call))
        except BaseException:
            self.defer_release(lease, marks)
            raise

    def prepare_release(
        self, lease: L, marks: Sequence[Mark] = (), keep: float = 0.0, keep_as: str = ""
    ) -> Call | None:
        """Mark the lease released and return the call; None if it was, or is another process's.

        ``keep`` leaves the slot taken for that time, without a holder; the rest as in the command.
        """
        if not lease.begin_release():
            return None
        renewer.discard(lease.token)
        keep, past = lease.after_release(keep)
        return self.commands.release(
            lease.name,
            lease.token,
            keep_for=keep,
            next_token=keep_as,
            marks=marks,
            history_note=past,
            budget=budget_of(lease.ttl),
        )

    def finish_release(self, lease: L, ours: bool) -> bool:
        if events.is_wanted("released"):
            lease.emit("released", held_for=lease.held_for, ours=ours)
        return ours

    def defer_release(
        self, lease: BaseLease, marks: Sequence[Mark] = (), keep: float = 0.0, keep_as: str = ""
    ) -> None:
        """Hand the release to the renewer: the call failed, or a time limit interrupted it."""
        if lease.is_foreign():
            return
        renewer.discard(lease.token)
        if lease.owner:
            lease.owner.leases.pop(lease.token, None)
            lease.owner.change_id()
        keep, past = lease.after_release(keep)
        # Not the lease's deadline: another process may have renewed it since.
        until = now() + lease.ttl
        until += min(RETRY_MARKS_FOR, max((mark.ttl for mark in marks), default=0.0))
        renewer.release_later(
            lease.name,
            lease.token,
            self._store,
            self.commands,
            until,
            keep=keep,
            keep_as=keep_as,
            marks=marks,
            past=past,
        )

    def close(self) -> None:
        """Make no further background calls but for held leases and pending releases."""
        renewer.stop_cleanup(self._store)

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
        for entered in list(owner_here().leases.values()):
            entered.entries -= {token}
        lease = renewer.lease_of(token)
        if lease and lease.begin_release():
            self.defer_release(lease)

    def walk(self) -> Operation[list[LockInfo]]:
        """Return every lock that has holders or waiters, each once."""
        found: dict[str, LockInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield from self.commands.page(cursor)
            for info in page.locks:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())

    def reenter(self, name: str, owner: Owner, token: str) -> L | None:
        """Enter the owner's lease of this lock once more; None if it has none from this backend."""
        for lease in list(owner.leases.values()):  # another thread may release one
            is_it = lease.name == name and lease.backend is self._backend
            if is_it and isinstance(lease, self._lease_class) and _is_enterable(lease):
                lease.entries |= {token}
                return lease
        return None


def _is_enterable(lease: BaseLease) -> bool:
    return lease.state in (State.HELD, State.SUSPENDED) and not lease.is_foreign()
