"""Acquire, renew and release at their own level: each call of the store answers as a test says."""

from __future__ import annotations

import asyncio
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
from celery_locks.core.operations import RETRY_MARKS_FOR, Operations
from celery_locks.core.owners import current_owner
from celery_locks.core.requests import AcquireRequest
from celery_locks.errors import (
    ForeignData,
    LeaseLost,
    LimitMismatch,
    LockRevoked,
    LockUnavailable,
    LockUsageError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
)
from celery_locks.store.calls import run_async, run_sync
from celery_locks.store.commands.replies import Done, LockPage, Lost
from celery_locks.store.commands.requests import AcquireExtras, IdempotencyCheck, Mark
from celery_locks.types import Conflict, Holder, LockInfo, LockSpec, Revocation
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

TTL = 9.0
BUSY = Conflict("a", (Holder(token="theirs"),), lapses_in=5.0, position=1)


class TimeLimit(Exception):
    """What a signal handler raises, anywhere."""


Run = Callable[[Any], Any]


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, scripted_store: ScriptedStore) -> Run:
    """``run(operation)``, as ``Locks`` or ``AsyncLocks`` run it."""

    async def perform(effect: Any) -> Any:
        return scripted_store.perform(effect)

    def run_awaited(operation: Any) -> Any:
        return asyncio.run(run_async(operation, perform))

    def run_blocking(operation: Any) -> Any:
        return run_sync(operation, scripted_store.perform)

    return run_blocking if request.param == "sync" else run_awaited


def ask(clock: VirtualClock, name: str = "a", **fields: Any) -> AcquireRequest[Lease]:
    token, at_least = fields.pop("token", "mine"), fields.pop("at_least", 0.0)
    return AcquireRequest(
        LockSpec(name, TTL, at_least=at_least), Holder(pid=7), token, clock(), **fields
    )


@pytest.fixture
def acquire(
    operations: Operations[Lease], scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> Callable[..., Lease]:
    """``acquire()`` returns a lease that was granted a moment ago, with fence 7."""

    def make(**fields: Any) -> Lease:
        scripted_store.expect(("acquire", 7))
        lease = run_sync(operations.acquire(ask(virtual_clock, **fields)), scripted_store.perform)
        assert isinstance(lease, Lease)
        return lease

    return make


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
    assert scripted_store.args_of("release")[0][:2] == ("a", "mine")


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
        run_sync(operations.acquire(ask(virtual_clock)), scripted_store.perform)
    assert still_renewer.tokens == frozenset()
    released_at: list[float] = []
    began = virtual_clock()

    def release(_: Any) -> bool:
        released_at.append(virtual_clock() - began)
        return False

    scripted_store.expect(*[("release", release)] * 6)
    for _ in range(200):
        still_renewer.run_due()
        virtual_clock.advance(0.125)
    assert not still_renewer.pending
    pauses = [later - sooner for sooner, later in pairwise(released_at)]
    assert released_at[0] == 0
    assert pauses == sorted(pauses)
    assert TTL / 3 < released_at[-1] < TTL


@pytest.mark.parametrize(
    "kind",
    [LockUsageError, LimitMismatch, ServerRefused, ServerTooOld, ServerOutOfMemory, ForeignData],
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
        run_sync(operations.acquire(ask(virtual_clock)), scripted_store.perform)
    assert set(still_renewer.pending) == {"mine"}


def test_failed_acquire_tells_why_once(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    emitted: list[events.LockEvent],
) -> None:
    scripted_store.expect(("acquire", ServerRefused("wrong password")))
    with pytest.raises(ServerRefused):
        run_sync(operations.acquire(ask(virtual_clock)), scripted_store.perform)
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
        run_sync(operations.acquire(ask(virtual_clock, extras=extras)), scripted_store.perform)
    still_renewer.run_due()
    [release] = scripted_store.args_of("release")
    assert release[4:7] == ("o:a", "", 0)


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
    scripted_store.expect(("acquire", Done("rt 1")))
    assert run(operations.acquire(ask(virtual_clock))) == Done("rt 1")
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
    assert run_sync(operations.acquire(again), scripted_store.perform) is lease
    assert lease.entries == {"again"}
    once_more = ask(virtual_clock, token="once more", owner=owner)
    answer = run_sync(operations.acquire(once_more), scripted_store.perform)
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
        run_sync(operations.acquire(ask(virtual_clock, owner=owner)), scripted_store.perform)
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
        if f"celery_locks{os.sep}core" not in file and not file.endswith("calls.py"):
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

    def after_a_second(_: Any) -> Lost:
        virtual_clock.advance(1)
        return Lost()

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
    lease, lost = acquire(), Lost({"mine"})
    if revoked:
        lost.revoked = {"mine": Revocation("ann", "it hangs")}
    scripted_store.expect(("renew", lost))
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
        run_sync(operations.renew(lease, 3.0), scripted_store.perform)
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
    scripted_store.expect(("renew", reply_lost()), ("renew", Lost()))
    with pytest.raises(LockUnavailable):
        run_sync(operations.renew(lease, 60.0), scripted_store.perform)
    assert lease.deadline == deadline
    run_sync(operations.renew(lease, None), scripted_store.perform)
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
        run_sync(operations.renew(lease, None), scripted_store.perform)
    assert scripted_store.names == ["acquire"]


def test_renewal_brings_a_request_to_stop(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    lease, reply = acquire(), Lost()
    reply.stops = frozenset({"mine"})
    scripted_store.expect(("renew", reply))
    run_sync(operations.renew(lease, None), scripted_store.perform)
    assert lease.stop_requested
    assert lease.state is State.HELD


@pytest.mark.parametrize("was_ours", [True, False])
def test_release_is_one_call_and_the_second_none(
    run: Run,
    was_ours: bool,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
    emitted: list[events.LockEvent],
) -> None:
    lease = acquire()
    scripted_store.expect(("release", was_ours))
    assert run(operations.release(lease)) is was_ours
    assert run(operations.release(lease)) is False
    assert lease.state is State.RELEASED
    assert (still_renewer.tokens, still_renewer.pending) == (frozenset(), {})
    assert [event.kind for event in emitted] == ["acquired", "released"]


@pytest.mark.parametrize("error", [reply_lost(), TimeLimit(), SystemExit()], ids=repr)
def test_release_without_a_reply_is_sent_again_until_it_succeeds(
    error: BaseException,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    virtual_clock.advance(2)
    scripted_store.expect(("release", error))
    with pytest.raises(type(error)):
        run_sync(operations.release(lease), scripted_store.perform)
    assert still_renewer.tokens == frozenset(), "a lease that is being released is not renewed"
    scripted_store.expect(("release", LockUnavailable("still away")))
    still_renewer.run_due()
    assert set(still_renewer.pending) == {"mine"}
    virtual_clock.advance(1)
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    assert not still_renewer.pending
    first, second, third = scripted_store.args_of("release")
    assert first == second == third


def test_release_that_never_succeeds_is_given_up_when_the_lock_has_lapsed(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = acquire()
    scripted_store.expect(("release", reply_lost()), ("release", LockUnavailable("away")))
    with pytest.raises(LockUnavailable):
        run_sync(operations.release(lease), scripted_store.perform)
    still_renewer.run_due()
    virtual_clock.advance(TTL + 0.1)
    still_renewer.run_due()
    assert not still_renewer.pending
    assert "lock 'a' could not be released and lapses: away" in caplog.text


def test_release_with_marks_is_tried_longer_than_the_lock_lives(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    """A mark says that work is completed: without it the work is done again."""
    lease, marks = acquire(), [Mark("d:j", 1, 3600.0)]
    scripted_store.expect(("release", reply_lost()))
    with pytest.raises(LockUnavailable):
        run_sync(operations.release(lease, marks), scripted_store.perform)
    give_up_at = still_renewer.pending["mine"].give_up_at
    assert give_up_at == pytest.approx(virtual_clock() + TTL + RETRY_MARKS_FOR)
    virtual_clock.advance(TTL + RETRY_MARKS_FOR / 2)
    scripted_store.expect(("release", False))
    still_renewer.run_due()
    assert scripted_store.args_of("release")[-1][4:7] == ("d:j", 1, 3_600_000)


def test_slot_that_is_kept_stays_taken_until_the_same_moment_however_late_the_release_comes(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    scripted_store.expect(("release", reply_lost()))
    with pytest.raises(LockUnavailable):
        run_sync(operations.release(lease, keep_for=5.0, next_token="next"), scripted_store.perform)
    virtual_clock.advance(2)
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    first, second = (args[2:4] for args in scripted_store.args_of("release"))
    assert first == (5000, "next")
    assert second == (3000, "next")


def test_at_least_keeps_the_slot_for_the_rest_of_its_time(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire(at_least=4.0)
    virtual_clock.advance(1.5)
    scripted_store.expect(("release", True))
    run_sync(operations.release(lease), scripted_store.perform)
    [args] = scripted_store.args_of("release")
    assert args[2] == 2500


def test_entries_end_one_by_one_and_the_last_release_releases(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    owner = current_owner()
    lease = acquire(owner=owner)
    for token in ("second", "third"):
        assert operations.reenter("a", owner, token) is lease
    assert operations.reenter("b", owner, "other") is None
    assert run_sync(operations.release(lease, entry="third"), scripted_store.perform)
    assert lease.entries == {"second"}
    assert run_sync(operations.release(lease, entry="unknown"), scripted_store.perform)
    assert scripted_store.names == ["acquire"]
    scripted_store.expect(("release", True))
    assert run_sync(operations.release(lease), scripted_store.perform)
    assert operations.reenter("a", owner, "too late") is None


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
        run_sync(operations.renew(lease, None), scripted_store.perform)
    assert run_sync(operations.release(lease), scripted_store.perform) is False
    operations.release_if_acquired("mine")
    assert not still_renewer.pending


@pytest.mark.parametrize("failed", [False, True])
def test_end_of_a_block_raises_a_loss_unless_the_block_raises(
    failed: bool,
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    """The lost lease is released all the same: the store may still have it as ours."""
    lease = acquire()
    virtual_clock.advance(TTL)
    assert lease.state is State.LOST
    scripted_store.expect(("release", False))
    operation = operations.exit_hold(lease, failed, "mine")
    if failed:
        run_sync(operation, scripted_store.perform)
    else:
        with pytest.raises(LeaseLost, match="before the block did"):
            run_sync(operation, scripted_store.perform)


def test_end_of_a_block_without_a_server_leaves_the_release_to_the_renewer(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    scripted_store.expect(("release", reply_lost()))
    run_sync(operations.exit_hold(lease, False, "mine"), scripted_store.perform)
    assert set(still_renewer.pending) == {"mine"}


def test_list_reads_every_page_and_names_each_lock_once(
    run: Run, operations: Operations[Lease], scripted_store: ScriptedStore
) -> None:
    """A lock that moves between two pages is on both."""
    one, two = LockInfo("one", 1, ()), LockInfo("two", 1, ())
    scripted_store.expect(("list", LockPage([one], "0:5")), ("list", LockPage([one, two], "")))
    assert run(operations.list_locks()) == [one, two]
    assert [args[0] for args in scripted_store.args_of("list")] == ["0", "5"]
