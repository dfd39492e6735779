"""Release at its own level: lost replies, interruptions, entries, the end of a block."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from celery_locks import events
from celery_locks.core.lease import Lease, State
from celery_locks.core.operations import Operations
from celery_locks.core.owners import current_owner
from celery_locks.core.releasing import RETRY_MARKS_FOR
from celery_locks.errors import (
    LeaseLost,
    LockUnavailable,
)
from celery_locks.store.commands.locks import Mark
from tests.support.acquiring import TTL, Run, TimeLimit
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock


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
        scripted_store.run(operations.release(lease))
    assert still_renewer.tokens == frozenset(), "a lease that is being released is not renewed"
    scripted_store.expect(("release", LockUnavailable("still away")))
    still_renewer.run_due()
    assert set(still_renewer.pending) == {"mine"}
    virtual_clock.advance(1)
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    assert not still_renewer.pending
    first, second, third = scripted_store.releases
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
        scripted_store.run(operations.release(lease))
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
    lease, marks = acquire(), [Mark("e:j", 1, 3600.0)]
    scripted_store.expect(("release", reply_lost()))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.release(lease, marks))
    give_up_at = still_renewer.pending["mine"].give_up_at
    assert give_up_at == pytest.approx(virtual_clock() + TTL + RETRY_MARKS_FOR)
    virtual_clock.advance(TTL + RETRY_MARKS_FOR / 2)
    scripted_store.expect(("release", False))
    still_renewer.run_due()
    assert scripted_store.releases[-1].marks == [Mark("e:j", 1, 3600.0)]


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
        scripted_store.run(operations.release(lease, keep_for=5.0, next_token="next"))
    virtual_clock.advance(2)
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    first, second = ((it.keep_for, it.next_token) for it in scripted_store.releases)
    assert first == (5.0, "next")
    assert second == (3.0, "next")


def test_at_least_keeps_the_slot_for_the_rest_of_its_time(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire(at_least=4.0)
    virtual_clock.advance(1.5)
    scripted_store.expect(("release", True))
    scripted_store.run(operations.release(lease))
    [release] = scripted_store.releases
    assert release.keep_for == 2.5


def test_entries_end_one_by_one_and_the_last_release_releases(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    lease = acquire(owner=current_owner())
    lease.entries = frozenset({"second", "third"})

    def end(entry: str) -> bool:
        return scripted_store.run(operations.release_entry(lease, entry))

    assert end("third")
    assert lease.entries == {"second"}
    assert end("unknown")
    assert scripted_store.names == ["acquire"]
    scripted_store.expect(("release", True))
    assert end("")
    assert lease.state is State.RELEASED


def test_release_of_the_lease_itself_ends_all_entries(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    """The end of a task releases its lock, whoever has entered it and forgotten to leave."""
    lease = acquire(owner=current_owner())
    lease.entries = frozenset({"second"})
    scripted_store.expect(("release", True))
    assert scripted_store.run(operations.release(lease))


def test_interrupted_release_in_a_forked_child_leaves_the_lease_to_its_parent(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease, child = acquire(), os.getpid() + 1

    def struck() -> bool:
        raise TimeLimit

    monkeypatch.setattr(os, "getpid", lambda: child)
    monkeypatch.setattr(lease, "begin_release", struck)
    with pytest.raises(TimeLimit):
        scripted_store.run(operations.release(lease))
    assert not still_renewer.pending


def test_deferred_release_leaves_its_owner_without_the_lease_and_with_a_new_id(
    operations: Operations[Lease], scripted_store: ScriptedStore, acquire: Callable[..., Lease]
) -> None:
    """Until it is sent the store shows a hold that nobody has: it is part of no deadlock."""
    owner = current_owner()
    lease, before = acquire(owner=owner), owner.id
    scripted_store.expect(("release", reply_lost()))
    with pytest.raises(LockUnavailable):
        scripted_store.run(operations.release(lease))
    assert owner.leases == {}
    assert owner.id != before


def test_caller_that_never_got_its_lease_has_it_released(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
) -> None:
    """A signal handler raised between the grant and the assignment."""
    acquire()
    operations.release_if_acquired("unknown")
    assert not still_renewer.pending
    operations.release_if_acquired("mine")
    operations.release_if_acquired("mine")
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    assert (still_renewer.tokens, still_renewer.pending) == (frozenset(), {})


def test_entry_that_never_got_its_lease_ends_alone(
    operations: Operations[Lease], still_renewer: StillRenewer, acquire: Callable[..., Lease]
) -> None:
    lease = acquire(owner=current_owner())
    lease.entries = frozenset({"second"})
    operations.release_if_acquired("second")
    assert lease.entries == frozenset()
    assert lease.state is State.HELD
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
        scripted_store.run(operation)
    else:
        with pytest.raises(LeaseLost, match="before the block did"):
            scripted_store.run(operation)


def test_end_of_a_block_without_a_server_leaves_the_release_to_the_renewer(
    operations: Operations[Lease],
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    acquire: Callable[..., Lease],
) -> None:
    lease = acquire()
    scripted_store.expect(("release", reply_lost()))
    scripted_store.run(operations.exit_hold(lease, False, "mine"))
    assert set(still_renewer.pending) == {"mine"}


def test_end_of_a_block_without_a_lock_does_nothing(
    operations: Operations[Lease], scripted_store: ScriptedStore
) -> None:
    scripted_store.run(operations.exit_hold(None, False, "mine"))
    assert scripted_store.performed == []
