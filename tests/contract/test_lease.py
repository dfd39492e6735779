"""A lease from renewal to loss, in both APIs."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import LeaseLost, LockEvent, State, admin, subscribe
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.replies import Renewal
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.waiting import wait_until


def test_ttl_keeps_its_fraction(api: LocksApi) -> None:
    """A ttl of 1.9 s that became 1 s would lapse between two renewals."""
    api.acquire("a", ttl=1.9)
    info = api.info("a")
    assert info
    assert info.holders[0].ttl == 1.9
    assert 1.5 < info.remaining < 1.901


def test_renew_sets_the_ttl_and_does_not_add_it(api: LocksApi) -> None:
    lease = api.acquire("a", ttl=60)
    for ttl in (90.5, 90.5, 20.25, 20.25):
        api.renew(lease, ttl)
        info = api.info("a")
        assert info
        assert ttl - 2 < info.remaining < ttl + 0.001
        assert info.holders[0].ttl == ttl, "others compute from it whether a renewal is overdue"
        assert ttl - 3 < lease.remaining < ttl
    api.renew(lease)
    assert lease.ttl == 20.25
    assert lease.remaining < 20.25


def test_renew_to_a_shorter_ttl_shortens_the_holders_trust(api: LocksApi) -> None:
    """The holder must not trust a ttl of 30 s that the store has cut to 1 s."""
    lease = api.acquire("a", ttl=30)
    api.renew(lease, 2)
    info = api.info("a")
    assert info
    assert lease.remaining < info.remaining < 2.001


def test_lease_is_renewed_by_itself(api: LocksApi) -> None:
    lease = api.acquire("a", ttl=2)
    wait_until(lambda: lease.renewals >= 2, what="two renewals")
    assert lease.state is State.HELD
    assert api.is_locked("a")


def test_lapsed_lease_that_nobody_took_is_revived(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    backend.lapse("a", lease.token)
    assert not api.is_locked("a")
    api.renew(lease)
    assert [h.token for h in api.holders("a")] == [lease.token]


def test_lapsed_lease_that_was_taken_is_lost(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    calls: list[Any] = []
    lease = api.acquire("a", on_lost=lambda lease, error: calls.append((lease, error)))
    backend.lapse("a", lease.token)
    assert other.acquire("a")
    with pytest.raises(LeaseLost, match="no longer has it"):
        api.renew(lease)
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.state is State.LOST
    assert [(lost, error.name) for lost, error in calls] == [(lease, "a")]


def test_wiped_store_makes_the_lease_lost(backend: Backend, kind: str) -> None:
    """The renewer reports it without being asked, and a renewal does not create the lock."""
    api, lost = backend.api(kind, guard_after_loss=False), threading.Event()
    api.acquire("a", ttl=2, on_lost=lambda *_: lost.set())
    backend.wipe()
    assert lost.wait(15)
    assert not api.is_locked("a")


def test_hold_raises_a_loss_at_its_end(backend: Backend, kind: str) -> None:
    api = backend.api(kind, guard_after_loss=False)
    with pytest.raises(LeaseLost):
        with api.hold("a") as lease:
            backend.wipe()
            with pytest.raises(LeaseLost):
                api.renew(lease)


def test_late_renewal_does_not_make_the_lock_anew(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    lease = api.acquire("a")
    late = locks.commands.renew([Renewal("a", lease.token, 30)], 1)
    api.release(lease)
    assert locks.perform(late).lost == {lease.token}
    assert backend.keys() == {"fence"}


def test_renewing_many_says_which_are_lost(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    leases = [locks.acquire(f"n{i}") for i in range(20)]
    gone = {lease.token for lease in leases[::3] if lease and lease.release()}
    batch = [Renewal(lease.name, lease.token, 30) for lease in leases if lease]
    assert locks.perform(locks.commands.renew(batch, 1)).lost == gone
    for lease in leases:
        assert lease
        lease.release()


def test_at_least_keeps_the_lock_taken_after_an_early_release(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    lease = api.acquire("a", ttl=30, at_least=0.6)
    assert api.release(lease) is True
    assert lease.state is State.RELEASED
    assert other.acquire("a") is None
    locks = backend.locks()
    late = locks.commands.renew([Renewal("a", lease.token, 30)], 1)
    assert locks.perform(late).lost == {lease.token}
    info = other.info("a")
    assert info
    assert info.remaining < 0.601, "a late renewal lengthened it"
    assert wait_until(lambda: other.acquire("a"), deadline=5, what="at_least to pass")


def test_at_least_that_is_over_changes_nothing(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", at_least=0.05)
    wait_until(lambda: lease.held_for > 0.06)
    api.release(lease)
    assert backend.keys() == {"fence"}


def test_at_least_gives_way_to_a_waiter_when_it_is_over(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    lease = api.acquire("a", at_least=0.4)
    waiter = in_thread(other.acquire, "a", wait=5)
    api.release(lease)
    assert waiter.result().fence > lease.fence


def test_reentrant_is_counted(api: LocksApi, other: LocksApi) -> None:
    with api.hold("a", reentrant=True) as outer:
        with api.hold("a", reentrant=True) as inner:
            assert inner is outer
            with api.hold("a", reentrant=True):
                pass
        assert other.is_locked("a"), "an inner exit freed the lock"
    assert not other.is_locked("a")


def test_reentrant_is_asked_for_each_time(api: LocksApi) -> None:
    with api.hold("a", reentrant=True):
        assert api.acquire("a") is None


def test_reentrant_is_not_shared_with_other_threads_or_tasks(
    api: LocksApi, in_thread: Callable[..., Any]
) -> None:
    with api.hold("a", reentrant=True):
        assert in_thread(api.acquire, "a", reentrant=True).result() is None


def test_reentrant_is_not_inherited_by_the_next_thread(api: LocksApi) -> None:
    """The system reuses the ident of a thread that has ended."""
    answers: list[Any] = []
    for _ in range(10):
        thread = threading.Thread(target=lambda: answers.append(api.acquire("a", reentrant=True)))
        thread.start()
        thread.join()
    assert [bool(answer) for answer in answers] == [True] + [False] * 9


def test_reentrant_lease_that_was_lost_is_not_entered(backend: Backend, kind: str) -> None:
    api = backend.api(kind, guard_after_loss=False)
    lease = api.acquire("a", reentrant=True)
    backend.wipe()
    with pytest.raises(LeaseLost):
        api.renew(lease)
    again = api.acquire("a", reentrant=True)
    assert again is not lease
    assert again.fence > lease.fence
    api.release(lease)
    assert api.acquire("a", reentrant=True) is again


def test_info_of_a_free_lock_is_none(api: LocksApi) -> None:
    assert api.info("a") is None
    assert api.holders("a") == ()
    assert api.is_locked("a") is False
    api.release(api.acquire("a"))
    assert api.info("a") is None


def test_info_leaves_the_lapsed_out(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    backend.lapse("a", lease.token)
    assert api.info("a") is None
    assert list(admin.list_locks(backend.locks())) == []


def test_events_tell_the_life_of_a_lock(api: LocksApi, other: LocksApi) -> None:
    seen: list[LockEvent] = []
    unsubscribe = subscribe(seen.append)
    try:
        # Only the renewal below, however slow the machine.
        lease = api.acquire("life", ttl=600)
        other.acquire("life")
        api.renew(lease)
        api.release(lease)
    finally:
        unsubscribe()
    # Without the end of an earlier test's lease.
    seen = [event for event in seen if event.name == "life"]
    assert [event.kind for event in seen] == ["acquired", "conflict", "renewed", "released"]
    assert {event.fence for event in seen if event.kind != "conflict"} == {lease.fence}


def test_close_keeps_what_is_held(api: LocksApi, backend: Backend, kind: str) -> None:
    locks = backend.api(kind)
    lease = locks.acquire("closing", ttl=2)
    if kind == "sync":
        locks.close()
    renewed = lease.renewals
    wait_until(lambda: lease.renewals > renewed, what="a renewal after close")
    assert api.is_locked("closing")
    renewer.discard(lease.token)
