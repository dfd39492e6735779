"""What acquiring, waiting, renewing and releasing are, written once for both faces. No I/O.

Each is a generator that yields effects (``store/base.py``) and is driven by ``Locks`` (blocking) or
``AsyncLocks`` (awaited). The paths where something goes wrong between question and answer are
here too: whatever may have been taken without anybody knowing is handed to the keeper to give back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from celery_locks import events
from celery_locks.clock import now
from celery_locks.errors import (
    ForeignData,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.keeper import keeper
from celery_locks.lease import NO_LONGER_THERE, BaseLease, Face, OnLost, State, trusted_until
from celery_locks.model import Conflict, Holder, LockInfo, LockSpec, check_ttl
from celery_locks.store.base import Call, Flow, Listen, Nap, Store
from celery_locks.store.verbs import CLAIM, Besides, Done, Mark, Renewal, Verbs, budget_of

L = TypeVar("L", bound=BaseLease)

# A waiter asks again this often though nobody woke it, and counts as gone after three such times.
REPOLL = 0.8
ALIVE = 3 * REPOLL
# Errors by which the server says that it did not do what it was asked.
_NOTHING_TAKEN = (LockUsageError, ServerRefused, ServerTooOld, ServerOutOfMemory, ForeignData)


def _is_fresh(sent_at: float) -> bool:
    """Enough is left of a claim for the keeper to renew it in its own time."""
    return trusted_until(sent_at, CLAIM) - now() > CLAIM / 4


# The keeper tries so long to leave a mark that could not be left: work that is done counts as done.
MARKS_OWED = 600.0
# A hold of so many seconds is written down when it ends (note_past in common.lua).
NOTED = 1.0


def new_token() -> str:
    """Random, one for each attempt to acquire."""
    return os.urandom(12).hex()


def _is_in_vain(conflict: Conflict, holder: Holder) -> bool:
    """Behind its own twin nobody waits: it could only learn that the work is done.

    Nor does a task behind a message, which may need the worker's slot that it would wait in.
    """
    if not holder.task_id:
        return False
    return conflict.has_twin_of(holder.task_id, holder.attempt) or conflict.is_behind_messages


def _asker(holder: Holder, policy: str, **more: Any) -> dict[str, Any]:
    """What the events say of who asked."""
    return {"task": holder.task, "task_id": holder.task_id, "policy": policy, **more}


class Flows(Generic[L]):
    """The flows over one layout.

    ``face`` is what leases are renewed and released by; ``store`` is the one for the keeper's
    thread, and ``unlisten`` the driving store's.
    """

    def __init__(
        self,
        face: Face,
        lease_class: type[L],
        store: Store,
        verbs: Verbs,
        unlisten: Callable[[str], None],
    ) -> None:
        self._face = face
        self._lease_class = lease_class
        self._store = store
        self._unlisten = unlisten
        self.verbs = verbs
        self._entered: dict[tuple[str, Hashable], L] = {}

    def acquire(
        self,
        spec: LockSpec,
        holder: Holder,
        on_lost: OnLost | None = None,
        *,
        token: str = "",
        lease_class: type[L] | None = None,
        kept_elsewhere: bool = False,
        besides: Besides | None = None,
        policy: str = "direct",
    ) -> Flow[L | Conflict | Done]:
        """All after ``on_lost`` is not everybody's to ask for.

        Of tasks: a token from, and a keeper in, another process; ``policy`` is for events only.
        """
        token = token or new_token()
        began = sent_at = now()
        try:
            granted = spec.ttl
            if spec.wait:
                answer, sent_at, granted = yield from self._stand_in_line(
                    spec, token, holder, besides
                )
            else:
                answer = yield self.verbs.acquire(spec, token, holder, besides=besides)
            if not isinstance(answer, int):
                if isinstance(answer, Conflict):
                    asker = _asker(holder, policy, waited=now() - began)
                    events.emit("conflict", spec.name, token, conflict=answer, **asker)
                return answer
            lease = (lease_class or self._lease_class)(
                spec, token, answer, sent_at, on_lost, granted
            )
            lease.face, lease.task, lease.task_id = self._face, holder.task, holder.task_id
            if now() >= lease.deadline:
                # We may have slept since the question: a grant that has lapsed is not used.
                raise LockUnavailable(f"the grant of lock {spec.name!r} came after it had lapsed")
            if not kept_elsewhere:
                due = None if granted == spec.ttl else now() + lease.remaining / 3
                keeper.keep(lease, self._store, self.verbs, due)
            if events.is_heard("acquired"):
                asker = _asker(holder, policy, waited=now() - began)
                events.emit("acquired", spec.name, token, answer, **asker)
            return lease
        except BaseException as error:
            keeper.discard(token)
            if not isinstance(error, _NOTHING_TAKEN):
                # The store may have granted or queued it, or may do so yet.
                until = now() + spec.ttl
                once = besides.once if besides else None
                # Nor was anything begun, whatever mark says so.
                marks = [Mark(once.mark, "", 0.0)] if once and once.reuse == "never" else ()
                keeper.give_back(
                    spec.name, token, self._store, self.verbs, until, doubtful=True, marks=marks
                )
            if isinstance(error, LockUnavailable):
                asker = _asker(holder, policy)
                events.emit("unavailable", spec.name, token, why=str(error), **asker)
            raise
        finally:
            if spec.wait:
                self._unlisten(token)

    def _stand_in_line(
        self, spec: LockSpec, token: str, holder: Holder, besides: Besides | None
    ) -> Flow[tuple[int | Conflict | Done, float, float]]:
        """The answer, when it was asked for, and for how long it is good."""
        assert spec.wait
        patience_ends = now() + spec.wait
        root, budget = self.verbs.root(spec.name), budget_of(spec.ttl)
        channel: str | None = yield Listen(root, token, connect=False, budget=budget)
        call = self._call(spec, token, holder, channel, besides)
        while True:
            sent_at = now()
            answer = yield call
            if isinstance(answer, int):
                return answer, sent_at, spec.ttl
            left = patience_ends - now()
            if isinstance(answer, Done) or left <= 0 or _is_in_vain(answer, holder):
                if channel:  # it may have been handed the lock, or stand in line
                    yield self.verbs.release(spec.name, token, budget=budget)
                return answer, sent_at, 0.0
            if channel:
                fence = yield Nap(root, token, min(left, REPOLL, answer.lapses_in + 0.005))
                may_enter = not (holder.task_id or (besides and besides.once))
                if fence > answer.ticket and may_enter and _is_fresh(sent_at):
                    # Handed over after we were told "busy", so at the earliest when we asked that.
                    return fence, sent_at, CLAIM
                if fence:
                    # A task confirms: its lease may be kept elsewhere, and a copy of it may run.
                    # So does one that asks whether the work is done: it may be, by now.
                    continue
            channel = yield Listen(root, token, connect=True, budget=budget)
            call = self._call(spec, token, holder, channel, besides)

    def _call(
        self,
        spec: LockSpec,
        token: str,
        holder: Holder,
        channel: str | None,
        besides: Besides | None,
    ) -> Call:
        """Who has no channel yet asks without queueing."""
        alive = ALIVE if channel else 0.0
        return self.verbs.acquire(
            spec, token, holder, alive=alive, channel=channel or "-", besides=besides
        )

    def renew(self, lease: L, ttl: float | None) -> Flow[None]:
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
            keeper.reschedule(lease.token)
        call = self.verbs.renew([Renewal(lease.name, lease.token, lease.ttl)], budget_of(lease.ttl))
        lost = yield call
        if lost:
            keeper.discard(lease.token)
            lease.lose(NO_LONGER_THERE, lost.revoked.get(lease.token))
            lease.check()
        lease.renewed(sent_at)
        keeper.reschedule(lease.token)
        if lost.stops:
            lease.request_stop()

    def release(
        self, lease: L, *, keep: float = 0.0, keep_as: str = "", marks: Sequence[Mark] = ()
    ) -> Flow[bool]:
        """``keep`` leaves the slot taken for so long, without a holder; the rest as in the verb."""
        if lease.is_foreign() or lease.state is State.RELEASED:
            return False
        if lease.entries > 1:
            lease.entries -= 1
            return True
        keeper.discard(lease.token)
        if self._entered:
            self._entered = {key: one for key, one in self._entered.items() if one is not lease}
        held_for = lease.held_for
        keep = max(keep, lease.at_least - held_for)
        # Not so for short ones: nobody asks after them, and they are what most calls are about.
        past = "" if held_for >= NOTED else None
        lease.finish_release()
        try:
            ours: bool = yield self.verbs.release(
                lease.name,
                lease.token,
                keep=keep,
                keep_as=keep_as,
                marks=marks,
                past=past,
                budget=budget_of(lease.ttl),
            )
        except BaseException:
            # Not the lease's deadline: another process may have renewed it since we last heard.
            until = now() + lease.ttl
            until += min(MARKS_OWED, max((mark.ttl for mark in marks), default=0.0))
            keeper.give_back(
                lease.name,
                lease.token,
                self._store,
                self.verbs,
                until,
                keep=keep,
                marks=marks,
                past=past,
            )
            raise
        if events.is_heard("released"):
            lease.tell("released", held_for=lease.held_for, ours=ours)
        return ours

    def leave(self, lease: L, failed: bool) -> Flow[None]:
        """The end of a ``hold`` block: a loss is raised unless the block raises by itself."""
        lost = lease.state is State.LOST
        # Not reached: the keeper goes on trying, and has said so.
        with suppress(LockUnavailable):
            yield from self.release(lease)
        if lost and not failed:
            raise lease.loss("it ended before the block did; another may have run beside it")

    def walk(self) -> Flow[list[LockInfo]]:
        """Every lock that is held or waited for, page by page, each once."""
        found: dict[str, LockInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield self.verbs.page(cursor)
            for info in page.locks:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())

    def reenter(self, name: str, context: Hashable) -> L | None:
        """The lease that this context holds already, counted once more."""
        lease = self._entered.get((name, context))
        if lease is None or lease.state not in (State.HELD, State.SUSPENDED) or lease.is_foreign():
            return None
        lease.entries += 1
        return lease

    def remember(self, lease: L, context: Hashable) -> None:
        self._entered[lease.name, context] = lease
