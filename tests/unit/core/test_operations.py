"""Acquire, renew and release at their own level: each call of the store answers as a test says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from celery_locks import events
from celery_locks.core.lease import Lease, State, trusted_until
from celery_locks.core.operations import Operations
from celery_locks.core.owners import current_owner
from celery_locks.errors import (
    ForeignData,
    LeaseLost,
    LockConflict,
    LockRevoked,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.store.commands.locks import AcquireExtras, IdempotencyCheck, Mark
from celery_locks.store.commands.replies import Completed
from celery_locks.store.effects import run_sync
from celery_locks.types import Conflict, Holder, Revocation
from tests.support.acquiring import TTL, Run, TimeLimit, ask
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.sent_calls import renew_reply
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

BUSY = Conflict("a", (Holder(token="theirs"),), lapses_in=5.0, position=1)


def test_grant_becomes_a_lease_that_is_renewed(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    emitted: list[events.LockEvent],
) -> None:
    scripted_store.expect(("acquire", 7))
    lease = run(operations.acquire(ask(virtual_clock)))
    assert (lease.name, lease.token, lease.fence, lease.state) == ("a", "mine", 7, State.HELD)
    assert still_renewer.tokens == {"mine"}
    assert still_renewer.first_due == pytest.approx(virtual_clock() + TTL / 3)
    assert not still_renewer.pending
    assert [(event.kind, event.fence) for event in emitted] == [("acquired", 7)]


def test_slow_reply_does_not_lengthen_the_trust(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
) -> None:
    """The server counts from its grant, which may be as early as our question."""
    began = virtual_clock()

    def after_three_seconds(_: Any) -> int:
        virtual_clock.advance(3)
        return 7

    scripted_store.expect(("acquire", after_three_seconds))
    lease = run(operations.acquire(ask(virtual_clock)))
    assert lease.deadline == pytest.approx(trusted_until(began, TTL))


def test_grant_that_comes_after_its_deadline_is_released_and_not_used(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """The machine may have slept between the grant and its reply."""

    def after_a_sleep(_: Any) -> int:
        virtual_clock.advance(TTL)
        return 7

    scripted_store.expect(("acquire", after_a_sleep))
    with pytest.raises(LockUnavailable, match="came after it had lapsed"):
        run(operations.acquire(ask(virtual_clock)))
    assert still_renewer.tokens == frozenset()
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    assert scripted_store.releases[0][:2] == ("a", "mine")


@pytest.mark.parametrize(
    "error",
    [LockUnavailable("away"), reply_lost(), ServerReadOnly("a replica"), TimeLimit(), SystemExit()],
    ids=repr,
)
def test_call_without_a_reply_may_be_granted_later_and_is_released_until_it_would_lapse(
    error: BaseException,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """The question may lie in a buffer and be granted after the first release."""
    scripted_store.expect(("acquire", error))
    with pytest.raises(type(error)):
        scripted_store.run(operations.acquire(ask(virtual_clock)))
    assert still_renewer.tokens == frozenset()
    released_at: list[float] = []
    began = virtual_clock()

    def release(_: Any) -> bool:
        released_at.append(virtual_clock() - began)
        return False

    scripted_store.expect(*[("release", release)] * 7)
    for _ in range(200):
        still_renewer.run_due()
        virtual_clock.advance(0.125)
    assert not still_renewer.pending
    pauses = [later - sooner for sooner, later in pairwise(released_at)]
    assert released_at[0] == 0
    assert pauses[:-1] == sorted(pauses[:-1])
    assert released_at[-1] == pytest.approx(TTL), "the last one comes when its time ends"


@pytest.mark.parametrize(
    "kind",
    [LockUsageError, ServerRefused, ServerTooOld, ServerOutOfMemory, ForeignData],
)
def test_refused_call_acquired_nothing_and_releases_nothing(
    run: Run,
    kind: type[Exception],
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    scripted_store.expect(("acquire", kind("no")))
    with pytest.raises(kind):
        run(operations.acquire(ask(virtual_clock)))
    assert not still_renewer.pending


def test_refused_call_whose_first_try_may_have_been_executed_is_released(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """The second try met a server that is full; the first one may hold the lock."""
    error = ServerOutOfMemory("full")
    error.may_have_executed = True
    scripted_store.expect(("acquire", error))
    with pytest.raises(ServerOutOfMemory):
        scripted_store.run(operations.acquire(ask(virtual_clock)))
    assert set(still_renewer.pending) == {"mine"}


def test_failed_acquire_tells_why_once(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    emitted: list[events.LockEvent],
) -> None:
    scripted_store.expect(("acquire", ServerRefused("wrong password")))
    with pytest.raises(ServerRefused):
        scripted_store.run(operations.acquire(ask(virtual_clock)))
    [event] = emitted
    assert (event.kind, event.detail["why"]) == ("unavailable", "wrong password")
    assert event.detail["permanent"] is True


def test_work_that_may_have_begun_is_unmarked_with_the_release(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """``reuse="never"`` marks the work as begun with the grant; it has not begun here."""
    extras = AcquireExtras(idempotency=IdempotencyCheck("o:a", "never", 60.0))
    scripted_store.expect(("acquire", reply_lost()), ("release", True))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.acquire(ask(virtual_clock, extras=extras)))
    still_renewer.run_due()
    [release] = scripted_store.releases
    assert release.marks == [Mark("o:a", "", 0.0)]


def test_conflict_is_returned_and_nothing_is_released(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    emitted: list[events.LockEvent],
) -> None:
    scripted_store.expect(("acquire", BUSY))
    assert run(operations.acquire(ask(virtual_clock))) == BUSY
    assert (still_renewer.tokens, still_renewer.pending) == (frozenset(), {})
    assert [(event.kind, event.detail["conflict"]) for event in emitted] == [("conflict", BUSY)]


def test_completed_work_is_returned_as_it_is(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    scripted_store.expect(("acquire", Completed("rt 1")))
    assert run(operations.acquire(ask(virtual_clock))) == Completed("rt 1")
    assert not still_renewer.tokens


def test_conflict_with_oneself_is_an_entry_if_that_is_asked_for(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    owner = current_owner()
    lease = acquire(owner=owner)
    own = Conflict("a", (Holder(token="mine"),), 5.0, 1)
    scripted_store.expect(("acquire", own), ("acquire", own))
    again = ask(virtual_clock, token="again", owner=owner, reentrant=True)
    assert scripted_store.run(operations.acquire(again)) is lease
    assert lease.entries == {"again"}
    once_more = ask(virtual_clock, token="once more", owner=owner)
    answer = scripted_store.run(operations.acquire(once_more))
    assert answer == replace(own, is_own=True)


def test_lease_that_another_process_renews_is_not_renewed_here(
    still_renewer: StillRenewer, acquire: Callable[..., Lease]
) -> None:
    acquire(renewed_elsewhere=True)
    assert still_renewer.tokens == frozenset()


def test_failed_acquire_leaves_its_owner_without_the_lease_and_with_a_new_id(
    operations: Operations[Lease], scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """The store may show a hold of the former id that nobody has: it is part of no deadlock."""
    owner = current_owner()
    before = owner.id
    scripted_store.expect(("acquire", reply_lost()))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.acquire(ask(virtual_clock, owner=owner)))
    assert owner.leases == {}
    assert owner.id != before


class Strike:
    """Raises ``TimeLimit`` at the n-th line that runs in ``core`` or in ``run_sync``."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __enter__(self) -> Strike:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if f"celery_locks{os.sep}core" not in file and not file.endswith("effects.py"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise TimeLimit
        return self._trace


def test_signal_handler_that_raises_at_any_line_of_an_acquire_leaves_no_lease_renewed(
    operations: Operations[Lease], still_renewer: StillRenewer, virtual_clock: VirtualClock
) -> None:
    """The caller never got the lease: what is renewed now would be held for ever."""
    for line in range(1, 500):
        token = f"t{line}"
        store = ScriptedStore(("acquire", 7))
        strike, lease = Strike(line), None
        with suppress(TimeLimit), strike:
            lease = run_sync(operations.acquire(ask(virtual_clock, token=token)), store.perform)
        if strike.left > 0:
            break
        if lease is None:
            operations.release_if_acquired(token)  # as ``Locks`` does: the grant came through
        assert token not in still_renewer.tokens, line
        if "acquire" in store.names:
            assert token in still_renewer.pending, f"granted, and nobody releases it: {line}"
    assert line > 20
    assert lease is not None


def test_renewal_that_succeeds_counts_from_its_question(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    virtual_clock.advance(2)
    sent_at = virtual_clock()

    def after_a_second(_: Any) -> Any:
        virtual_clock.advance(1)
        return renew_reply()

    scripted_store.expect(("renew", after_a_second))
    run(operations.renew(lease, None))
    assert lease.deadline == pytest.approx(trusted_until(sent_at, TTL))
    assert still_renewer.first_due == pytest.approx(virtual_clock() + TTL / 3)


@pytest.mark.parametrize("revoked", [False, True])
def test_renewal_of_a_lease_that_the_server_has_not_raises_the_loss(
    run: Run,
    revoked: bool,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    by = {"mine": Revocation("ann", "it hangs")} if revoked else None
    scripted_store.expect(("renew", renew_reply("mine", revoked=by)))
    if not revoked:  # the server may have lost it: it decides
        scripted_store.expect(("reassert", frozenset({"mine"})))
    with pytest.raises(LockRevoked if revoked else LeaseLost):
        run(operations.renew(lease, None))
    assert lease.state is State.LOST
    assert still_renewer.tokens == frozenset()


def test_renewal_without_a_reply_leaves_the_lease_as_it_was(
    run: Run,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    deadline = lease.deadline
    scripted_store.expect(("renew", reply_lost()))
    with pytest.raises(LockUnavailable):
        run(operations.renew(lease, None))
    assert (lease.state, lease.deadline) == (State.HELD, deadline)
    assert still_renewer.tokens == {"mine"}


def test_shorter_ttl_counts_even_if_its_reply_is_lost(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    """The server may have it by now."""
    lease = acquire()
    scripted_store.expect(("renew", reply_lost()))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.renew(lease, 3.0))
    assert lease.deadline == pytest.approx(trusted_until(virtual_clock(), 3.0))
    assert still_renewer.first_due == pytest.approx(virtual_clock() + 1.0)


def test_longer_ttl_does_not_count_before_its_reply(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    deadline = lease.deadline
    scripted_store.expect(("renew", reply_lost()), ("renew", renew_reply()))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.renew(lease, 60.0))
    assert lease.deadline == deadline
    scripted_store.run(operations.renew(lease, None))
    assert lease.deadline == pytest.approx(trusted_until(virtual_clock(), 60.0))


def test_lost_lease_is_not_renewed(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    virtual_clock.advance(TTL)
    with pytest.raises(LeaseLost):
        scripted_store.run(operations.renew(lease, None))
    assert scripted_store.names == ["acquire"]


def test_renewal_brings_a_request_to_stop(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    lease = acquire()
    scripted_store.expect(("renew", renew_reply(stops=["mine"])))
    scripted_store.run(operations.renew(lease, None))
    assert lease.stop_requested
    assert lease.state is State.HELD


def test_lease_of_the_parent_process_is_neither_renewed_nor_released(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease, child = acquire(), os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(LockUsageError, match="the parent process's"):
        scripted_store.run(operations.renew(lease, None))
    assert scripted_store.run(operations.release(lease)) is False
    operations.release_if_acquired("mine")
    assert not still_renewer.pending


def test_signal_handler_that_raises_after_the_lease_is_renewed_stops_the_renewal(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, add = current_owner(), still_renewer.add

    def struck(*args: Any) -> None:
        add(*args)
        raise TimeLimit

    monkeypatch.setattr(still_renewer, "add", struck)
    scripted_store.expect(("acquire", 7))
    with pytest.raises(TimeLimit):
        scripted_store.run(operations.acquire(ask(virtual_clock, owner=owner)))
    assert still_renewer.tokens == frozenset()
    assert owner.leases == {}
    assert set(still_renewer.pending) == {"mine"}


def test_second_acquire_of_the_owner_enters_its_lease_without_a_call(
    operations: Operations[Lease], scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    def acquire(name: str, token: str, **options: Any) -> Any:
        operation = operations.acquire_by_name(name, token, TTL, {"reentrant": True, **options})
        return scripted_store.run(operation)

    scripted_store.expect(("acquire", 7), ("acquire", 8))
    first = acquire("a", "first")
    assert acquire("a", "second") is first
    assert acquire("b", "other") is not first
    assert first.entries == {"second"}
    virtual_clock.advance(TTL)
    scripted_store.expect(("acquire", BUSY))
    assert acquire("a", "too late") == BUSY, "a lost lease is not entered"


@pytest.mark.parametrize("required", [True, False])
def test_block_on_a_busy_lock_raises_or_has_none(
    operations: Operations[Lease], scripted_store: ScriptedStore, required: bool
) -> None:
    scripted_store.expect(("acquire", BUSY))
    operation = operations.enter_hold("a", "mine", TTL, {}, required)
    if required:
        with pytest.raises(LockConflict):
            scripted_store.run(operation)
    else:
        assert scripted_store.run(operation) is None


def test_stop_asks_the_holders_and_returns_them(
    run: Run, operations: Operations[Lease], scripted_store: ScriptedStore
) -> None:
    scripted_store.expect(("stop", (Holder(token="theirs"),)))
    assert run(operations.stop("a", None)) == (Holder(token="theirs"),)


def test_entry_leaves_the_lease_its_own_callback(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    """Whoever holds it is told to stop, not whoever entered it last."""
    lease = acquire(owner=current_owner())
    lease.backend = object()  # type: ignore[assignment]
    own = Conflict("a", (Holder(token="mine"),), 5.0, 1)
    scripted_store.expect(("acquire", own))
    operation = operations.acquire_by_name(
        "a", "again", TTL, {"reentrant": True, "on_stop": lambda *_: None}
    )
    assert scripted_store.run(operation) is lease
    assert lease.on_stop is None
