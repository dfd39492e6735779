"""A lease from renewal to loss, as both faces show it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import LeaseLost, LockEvent, State, admin, subscribe
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.locks import Renewal
from tests.contract.faces import LeaseBackend
from tests.contract.places import Place
from tests.support.waiting import wait_until


def test_ttl_keeps_its_fraction(face: LeaseBackend) -> None:
    """A ttl of 1.9 s that became 1 s would lapse between two renewals."""
    face.acquire("a", ttl=1.9)
    info = face.info("a")
    assert info
    assert info.holders[0].ttl == 1.9
    assert 1.5 < info.remaining < 1.901


def test_renew_sets_the_ttl_and_does_not_add_it(face: LeaseBackend) -> None:
    lease = face.acquire("a", ttl=60)
    for ttl in (90.5, 90.5, 20.25, 20.25):
        face.renew(lease, ttl)
        info = face.info("a")
        assert info
        assert ttl - 2 < info.remaining < ttl + 0.001
        assert info.holders[0].ttl == ttl, "by it others reckon whether a renewal is overdue"
        assert ttl - 3 < lease.remaining < ttl
    face.renew(lease)
    assert lease.ttl == 20.25
    assert lease.remaining < 20.25


def test_renew_to_a_shorter_ttl_shortens_the_holders_trust(face: LeaseBackend) -> None:
    """The holder must not believe in 30 s that the store has forgotten after one."""
    lease = face.acquire("a", ttl=30)
    face.renew(lease, 2)
    info = face.info("a")
    assert info
    assert lease.remaining < info.remaining < 2.001


def test_lease_is_renewed_by_itself(face: LeaseBackend) -> None:
    lease = face.acquire("a", ttl=2)
    wait_until(lambda: lease.renewals >= 2, what="two renewals")
    assert lease.state is State.HELD
    assert face.is_locked("a")


def test_lapsed_lease_that_nobody_took_is_revived(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a")
    place.lapse("a", lease.token)
    assert not face.is_locked("a")
    face.renew(lease)
    assert [h.token for h in face.holders("a")] == [lease.token]


def test_lapsed_lease_that_was_taken_is_lost(
    face: LeaseBackend, other: LeaseBackend, place: Place
) -> None:
    describe_entry: list[Any] = []
    lease = face.acquire("a", on_lost=lambda lease, error: describe_entry.append((lease, error)))
    place.lapse("a", lease.token)
    assert other.acquire("a")
    with pytest.raises(LeaseLost, match="no longer has it"):
        face.renew(lease)
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.state is State.LOST
    assert [(one, error.name) for one, error in describe_entry] == [(lease, "a")]


def test_wiped_store_makes_the_lease_lost(face: LeaseBackend, place: Place) -> None:
    """Told by the keeper, not only when asked; and the renewal does not make the lock anew."""
    lost = threading.Event()
    face.acquire("a", ttl=2, on_lost=lambda *_: lost.set())
    place.wipe()
    assert lost.wait(15)
    assert not face.is_locked("a")


def test_hold_raises_a_loss_at_its_end(face: LeaseBackend, place: Place) -> None:
    with pytest.raises(LeaseLost):
        with face.hold("a") as lease:
            place.wipe()
            with pytest.raises(LeaseLost):
                face.renew(lease)


def test_late_renewal_does_not_make_the_lock_anew(face: LeaseBackend, place: Place) -> None:
    locks = place.locks()
    lease = face.acquire("a")
    late = locks.commands.renew([Renewal("a", lease.token, 30)], 1)
    face.release(lease)
    assert locks.perform(late) == {lease.token}
    assert place.keys() == {"fence"}


def test_renewing_many_says_which_are_lost(place: Place) -> None:
    locks = place.locks(shards=1)
    leases = [locks.acquire(f"n{i}") for i in range(20)]
    gone = {lease.token for lease in leases[::3] if lease and lease.release()}
    batch = [Renewal(lease.name, lease.token, 30) for lease in leases if lease]
    assert locks.perform(locks.commands.renew(batch, 1)) == gone
    for lease in leases:
        assert lease
        lease.release()


def test_at_least_keeps_the_lock_taken_after_an_early_release(
    face: LeaseBackend, other: LeaseBackend, place: Place
) -> None:
    lease = face.acquire("a", ttl=30, at_least=0.6)
    assert face.release(lease) is True
    assert lease.state is State.RELEASED
    assert other.acquire("a") is None
    locks = place.locks()
    assert locks.perform(locks.commands.renew([Renewal("a", lease.token, 30)], 1)) == {lease.token}
    info = other.info("a")
    assert info
    assert info.remaining < 0.601, "a late renewal lengthened it"
    assert wait_until(lambda: other.acquire("a"), deadline=5, what="at_least to pass")


def test_at_least_that_is_over_changes_nothing(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a", at_least=0.05)
    wait_until(lambda: lease.held_for > 0.06)
    face.release(lease)
    assert place.keys() == {"fence"}


def test_at_least_gives_way_to_a_waiter_when_it_is_over(
    face: LeaseBackend, other: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    lease = face.acquire("a", at_least=0.4)
    waiter = in_thread(other.acquire, "a", wait=5)
    face.release(lease)
    assert waiter.result().fence > lease.fence


def test_reentrant_is_counted(face: LeaseBackend, other: LeaseBackend) -> None:
    with face.hold("a", reentrant=True) as outer:
        with face.hold("a", reentrant=True) as inner:
            assert inner is outer
            with face.hold("a", reentrant=True):
                pass
        assert other.is_locked("a"), "an inner exit freed the lock"
    assert not other.is_locked("a")


def test_reentrant_is_asked_for_each_time(face: LeaseBackend) -> None:
    with face.hold("a", reentrant=True):
        assert face.acquire("a") is None


def test_reentrant_is_not_shared_with_other_threads_or_tasks(
    face: LeaseBackend, in_thread: Callable[..., Any]
) -> None:
    with face.hold("a", reentrant=True):
        assert in_thread(face.acquire, "a", reentrant=True).result() is None


def test_reentrant_is_not_inherited_by_the_next_thread(face: LeaseBackend) -> None:
    """The system gives the ident of a thread that ended to the next one."""
    answers: list[Any] = []
    for _ in range(10):
        thread = threading.Thread(target=lambda: answers.append(face.acquire("a", reentrant=True)))
        thread.start()
        thread.join()
    assert [bool(answer) for answer in answers] == [True] + [False] * 9


def test_reentrant_lease_that_was_lost_is_not_entered(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a", reentrant=True)
    place.wipe()
    with pytest.raises(LeaseLost):
        face.renew(lease)
    again = face.acquire("a", reentrant=True)
    assert again is not lease
    assert again.fence > lease.fence
    face.release(lease)
    assert face.acquire("a", reentrant=True) is again


def test_info_of_a_free_lock_is_none(face: LeaseBackend) -> None:
    assert face.info("a") is None
    assert face.holders("a") == ()
    assert face.is_locked("a") is False
    face.release(face.acquire("a"))
    assert face.info("a") is None


def test_info_leaves_the_lapsed_out(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a")
    place.lapse("a", lease.token)
    assert face.info("a") is None
    assert list(admin.list_locks(place.locks())) == []


def test_events_tell_the_life_of_a_lock(face: LeaseBackend, other: LeaseBackend) -> None:
    seen: list[LockEvent] = []
    unsubscribe = subscribe(seen.append)
    try:
        lease = face.acquire("a")
        other.acquire("a")
        face.renew(lease)
        face.release(lease)
    finally:
        unsubscribe()
    assert [event.kind for event in seen] == ["acquired", "conflict", "renewed", "released"]
    assert {event.fence for event in seen if event.kind != "conflict"} == {lease.fence}


def test_close_keeps_what_is_held(face: LeaseBackend, place: Place, kind: str) -> None:
    locks = place.face(kind)
    lease = locks.acquire("closing", ttl=2)
    if kind == "sync":
        locks.close()
    renewed = lease.renewals
    wait_until(lambda: lease.renewals > renewed, what="a renewal after close")
    assert face.is_locked("closing")
    renewer.discard(lease.token)
