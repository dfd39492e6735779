"""What acquiring, waiting, renewing and releasing are, written once for both faces. No I/O.

Each is a generator that yields effects (``store/base.py``) and is driven by ``Locks`` (blocking) or
``AsyncLocks`` (awaited). The paths where something goes wrong between question and answer are
here too: whatever may have been taken without anybody knowing is handed to the keeper to give back.

Acquiring without waiting, and releasing, are one call each. What comes before and after the call
has functions of its own (``on_reply``, ``on_no_reply``; ``prepare_release``, ``finish_release``,
``defer_release``), for tasks: a short task would spend much of its time in generators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.deadlocks import edges, find_own_cycle, read_waits
from celery_locks.core.lease import (
    NOT_ON_SERVER,
    BaseLease,
    LeaseBackend,
    LostCallback,
    State,
    trusted_until,
)
from celery_locks.core.owners import Owner, blocked_here, owner_here
from celery_locks.core.renewer import renewer
from celery_locks.errors import (
    ForeignData,
    LockDeadlock,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.store.commands.locks import (
    CLAIM,
    AcquireExtras,
    Done,
    LockCommands,
    Mark,
    Renewal,
    budget_of,
)
from celery_locks.store.effects import Call, Operation, Store, Subscribe, WaitForHandover
from celery_locks.types import Blocker, Conflict, Holder, LockInfo, LockSpec, check_ttl

L = TypeVar("L", bound=BaseLease)

# A waiter asks again this often though nobody woke it, and counts as gone after three such times.
REPOLL = 0.8
ALIVE = 3 * REPOLL
# Errors by which the server says that it did not do what it was asked.
_NOTHING_ACQUIRED = (
    LockDeadlock,
    LockUsageError,
    ServerRefused,
    ServerTooOld,
    ServerOutOfMemory,
    ForeignData,
)


def _is_fresh(sent_at: float) -> bool:
    """Enough is left of a claim for the keeper to renew it, over a slow network too."""
    return trusted_until(sent_at, CLAIM) - now() > CLAIM * 3 / 4


# The keeper tries so long to leave a mark that could not be left: work that is done counts as done.
RETRY_MARKS_FOR = 600.0


def new_token() -> str:
    """Random, one for each attempt to acquire."""
    return os.urandom(12).hex()


class AcquireRequest(NamedTuple, Generic[L]):
    """One request for a lock, from the moment ``began`` on.

    ``owner`` is who holds the lock until it releases it itself; a lease that may be passed on has
    none. ``reentrant``: a lock that the owner has is entered once more.

    The rest is not everybody's to say. Of tasks: a token from, and a keeper in, another process;
    ``policy`` is for events only.
    """

    spec: LockSpec
    holder: Holder
    token: str
    began: float
    on_lost: LostCallback | None = None
    owner: Owner | None = None
    reentrant: bool = False
    lease_class: type[L] | None = None
    renewed_elsewhere: bool = False
    extras: AcquireExtras | None = None
    policy: str = "direct"


def _is_pointless_wait(conflict: Conflict, holder: Holder) -> bool:
    """Behind its own twin nobody waits: it could only learn that the work is done.

    Nor does a task behind a message, which may need the worker's slot that it would wait in.
    """
    if not holder.job_id:
        return False
    return conflict.has_copy_of(holder.job_id, holder.attempt) or conflict.is_behind_messages


def _asker(ask: AcquireRequest[Any]) -> dict[str, Any]:
    """What the events say of who asked."""
    task, task_id = ask.holder.task, ask.holder.task_id
    return {"task": task, "task_id": task_id, "policy": ask.policy, "waited": now() - ask.began}


class Operations(Generic[L]):
    """The flows over one layout.

    ``face`` is what leases are renewed and released by; ``store`` is the one for the keeper's
    thread, and ``unsubscribe`` the driving store's.
    """

    def __init__(
        self,
        face: LeaseBackend,
        lease_class: type[L],
        store: Store,
        commands: LockCommands,
        unsubscribe: Callable[[str], None],
    ) -> None:
        self._face = face
        self._lease_class = lease_class
        self._store = store
        self._unsubscribe = unsubscribe
        self.commands = commands

    def acquire(self, ask: AcquireRequest[L]) -> Operation[L | Conflict | Done]:
        try:
            if ask.spec.wait:
                answer, sent_at, granted = yield from self._wait_in_queue(ask)
                return self.on_reply(ask, answer, sent_at, granted)
            call = self.commands.acquire(ask.spec, ask.token, ask.holder, ask.extras)
            return self.on_reply(ask, (yield call), ask.began)
        except BaseException as error:
            self.on_no_reply(ask, error)
            raise
        finally:
            if ask.spec.wait:
                self._unsubscribe(ask.token)

    def on_reply(
        self,
        ask: AcquireRequest[L],
        answer: int | Conflict | Done,
        sent_at: float,
        granted: float | None = None,
    ) -> L | Conflict | Done:
        """What the answer means, to a question of ``sent_at``.

        A grant is good for ``granted`` seconds, if not for the whole ttl.
        """
        if not isinstance(answer, int):
            return self._not_granted(ask, answer) if isinstance(answer, Conflict) else answer
        spec, holder, token, _, on_lost, owner, _, lease_class, renewed_elsewhere, _, _ = ask
        lease = (lease_class or self._lease_class)(spec, token, answer, sent_at, on_lost, granted)
        lease.face, lease.task, lease.task_id = self._face, holder.task, holder.task_id
        if owner:
            lease.owner = owner
            owner.leases[token] = lease
        moment = now()
        if moment >= lease.deadline:
            # We may have slept since the question: a grant that has lapsed is not used.
            raise LockUnavailable(f"the grant of lock {spec.name!r} came after it had lapsed")
        if not renewed_elsewhere:
            # At once what was only granted for a moment: a slow network has time for it still.
            renewer.add(lease, self._store, self.commands, moment if granted else None)
        if events.is_heard("acquired"):
            events.emit("acquired", spec.name, token, answer, **_asker(ask))
        return lease

    def _not_granted(self, ask: AcquireRequest[L], conflict: Conflict) -> L | Conflict:
        own = _own_lease(conflict)
        if own and ask.reentrant and isinstance(own, self._lease_class) and _is_enterable(own):
            own.entries |= {ask.token}
            return own
        if own:
            conflict = replace(conflict, is_own=True)
        events.emit("conflict", conflict.name, ask.token, conflict=conflict, **_asker(ask))
        return conflict

    def on_no_reply(self, ask: AcquireRequest[L], error: BaseException) -> None:
        """What was asked for may have been granted or queued, or may be yet: it is given back."""
        renewer.discard(ask.token)
        if isinstance(error, LockDeadlock):
            events.emit("deadlock", ask.spec.name, ask.token, why=str(error), **_asker(ask))
        if ask.owner:
            ask.owner.leases.pop(ask.token, None)
        may_have_executed = isinstance(error, LockUnavailable) and error.may_have_executed
        if may_have_executed or not isinstance(error, _NOTHING_ACQUIRED):
            once = ask.extras.once if ask.extras else None
            if ask.owner and isinstance(error, LockUnavailable):
                ask.owner.change_id()
            # Nor was anything begun, whatever mark says so.
            marks = [Mark(once.mark, "", 0.0)] if once and once.reuse == "never" else ()
            renewer.release_later(
                ask.spec.name,
                ask.token,
                self._store,
                self.commands,
                now() + ask.spec.ttl,
                repeat_until_expired=True,
                marks=marks,
            )
        if isinstance(error, LockUnavailable):
            permanent = {"permanent": True} if error.is_permanent else {}
            about = {"why": str(error), **permanent, **_asker(ask)}
            events.emit("unavailable", ask.spec.name, ask.token, **about)

    def _wait_in_queue(
        self, ask: AcquireRequest[L]
    ) -> Operation[tuple[int | Conflict | Done, float, float | None]]:
        """The answer, when it was asked for, and for how long it is good if not for the ttl."""
        spec, token, holder = ask.spec, ask.token, ask.holder
        assert spec.wait
        patience_ends = ask.began + spec.wait
        root, budget = self.commands.root(spec.name), budget_of(spec.ttl)
        channel: str | None = yield Subscribe(root, token, connect=False, budget=budget)
        call = self._call(ask, channel)
        while True:
            sent_at = now()
            answer = yield call
            if isinstance(answer, int):
                return answer, sent_at, None
            left = patience_ends - now()
            is_final = isinstance(answer, Done) or left <= 0 or _is_pointless_wait(answer, holder)
            if is_final or (ask.reentrant and _own_lease(answer)):
                if channel:  # it may have been handed the lock, or stand in line
                    yield self.commands.release(spec.name, token, budget=budget)
                return answer, sent_at, None
            if channel:
                cycle = yield from self._find_deadlock(spec.name, token)
                if cycle:
                    yield self.commands.release(spec.name, token, budget=budget)
                    raise LockDeadlock(replace(answer, cycle=cycle))
                fence = yield WaitForHandover(
                    root, token, min(left, REPOLL, answer.lapses_in + 0.005)
                )
                may_enter = not (holder.job_id or (ask.extras and ask.extras.once))
                if fence > answer.ticket and may_enter and _is_fresh(sent_at):
                    # Handed over after we were told "busy", so at the earliest when we asked that.
                    # Otherwise we confirm: after a longer wait one more exchange is nothing.
                    return fence, sent_at, CLAIM
                if fence:
                    # A task confirms: its lease may be kept elsewhere, and a copy of it may run.
                    # So does one that asks whether the work is done: it may be, by now.
                    continue
            channel = yield Subscribe(root, token, connect=True, budget=budget)
            call = self._call(ask, channel)

    def _call(self, ask: AcquireRequest[L], channel: str | None) -> Call:
        """Who has no channel yet asks without queueing."""
        return self.commands.acquire(
            ask.spec,
            ask.token,
            ask.holder,
            ask.extras,
            alive=ALIVE if channel else 0.0,
            channel=channel or "-",
            owners=_waiting_owners(),
        )

    def _find_deadlock(self, name: str, token: str) -> Operation[tuple[Blocker, ...]]:
        """The cycle that this wait closes; () if there is none, or nobody can say now.

        Seen twice, the same both times, it is one: see ``deadlocks.py``.
        """
        owners = _waiting_owners()
        if not owners:
            return ()
        leases = frozenset(token for owner in blocked_here() for token in list(owner.leases))
        try:
            first = yield from read_waits(self.commands, owners[0], name, owners)
            if not find_own_cycle(token, first, leases):
                return ()
            second = yield from read_waits(self.commands, owners[0], name, owners)
        except LockUnavailable:
            return ()  # looked for again with the next poll
        same = edges(first) == edges(second)
        return find_own_cycle(token, second, leases) if same else ()

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
        lost = yield self.commands.renew([renewal], budget_of(lease.ttl), retimed=ttl is not None)
        if lost:
            renewer.discard(lease.token)
            lease.lose(NOT_ON_SERVER, lost.revoked.get(lease.token))
            lease.check()
        lease.renewed(sent_at)
        renewer.reschedule(lease.token)
        if lost.stops:
            lease.request_stop()

    def release(self, lease: L, marks: Sequence[Mark] = (), entry: str = "") -> Operation[bool]:
        """True if the lock was ours until now; ``marks`` as in the verb.

        Of a lease that was entered again only one entry ends: this one, if it is one.
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
        """From then on the lease is released; None if it was, or is not ours to release.

        ``keep`` leaves the slot taken for so long, without a holder; the rest as in the verb.
        """
        if not lease.begin_release():
            return None
        renewer.discard(lease.token)
        keep, past = lease.leaves(keep)
        return self.commands.release(
            lease.name,
            lease.token,
            keep=keep,
            keep_as=keep_as,
            marks=marks,
            past=past,
            budget=budget_of(lease.ttl),
        )

    def finish_release(self, lease: L, ours: bool) -> bool:
        if events.is_heard("released"):
            lease.tell("released", held_for=lease.held_for, ours=ours)
        return ours

    def defer_release(
        self, lease: BaseLease, marks: Sequence[Mark] = (), keep: float = 0.0, keep_as: str = ""
    ) -> None:
        """Nobody answered, or a time limit struck on the way to the call: the keeper tries on."""
        if lease.is_foreign():
            return
        renewer.discard(lease.token)
        if lease.owner:
            lease.owner.leases.pop(lease.token, None)
            lease.owner.change_id()
        keep, past = lease.leaves(keep)
        # Not the lease's deadline: another process may have renewed it since we last heard.
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

    def exit_hold(self, lease: L, failed: bool, entry: str) -> Operation[None]:
        """The end of a ``hold`` block: a loss is raised unless the block raises by itself."""
        lost = lease.state is State.LOST
        # Not reached: the keeper goes on trying, and has said so.
        with suppress(LockUnavailable):
            yield from self.release(lease, entry=entry)
        if lost and not failed:
            raise lease.loss("it ended before the block did; another may have run beside it")

    def release_if_acquired(self, token: str) -> None:
        """Nobody will release what was got with this token; if it is held, the keeper does."""
        for entered in list(owner_here().leases.values()):
            entered.entries -= {token}
        lease = renewer.lease_of(token)
        if lease and lease.begin_release():
            self.defer_release(lease)

    def walk(self) -> Operation[list[LockInfo]]:
        """Every lock that is held or waited for, page by page, each once."""
        found: dict[str, LockInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield self.commands.page(cursor)
            for info in page.locks:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())

    def reenter(self, name: str, owner: Owner, token: str) -> L | None:
        """The lease of this lock that the owner got from the same face, entered once more."""
        for lease in list(owner.leases.values()):  # another thread may release one
            is_it = lease.name == name and lease.face is self._face
            if is_it and isinstance(lease, self._lease_class) and _is_enterable(lease):
                lease.entries |= {token}
                return lease
        return None


def _is_enterable(lease: BaseLease) -> bool:
    return lease.state in (State.HELD, State.SUSPENDED) and not lease.is_foreign()


def _own_lease(conflict: Conflict) -> BaseLease | None:
    """The lease that is in the way and that cannot be released while this flow waits."""
    tokens = {holder.token for holder in conflict.holders}
    leases = (lease for owner in blocked_here() for lease in list(owner.leases.values()))
    return next((lease for lease in leases if lease.token in tokens), None)


def _waiting_owners() -> list[str]:
    """Whom a wait of this flow blocks, itself first; nobody if none of them holds a lock."""
    blocked = blocked_here()
    here = owner_here()
    return [here.id, *(owner.id for owner in blocked if owner is not here)] if blocked else []
