"""What the operator sees is the truth, and what the operator does reaches everybody."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import Holder, LeaseLost, admin
from celery_locks.model import LockSpec
from tests.contract.faces import Face
from tests.contract.places import Place
from tests.contract.test_line import in_line


def test_list_of_nothing_is_empty(place: Place) -> None:
    assert list(admin.list_locks(place.locks())) == []


def test_list_equals_the_truth_over_pages_and_shards(place: Place) -> None:
    """More than two pages, some released, some lapsed, some with a limit, some waited for."""
    locks = place.locks()
    perform, verbs = locks.perform, locks.verbs
    fences = {}
    for i in range(330):
        spec = LockSpec(f"lock:{i}", 60, limit=1 + i % 3)
        fences[spec.name] = perform(verbs.acquire(spec, f"t{i}", Holder(task_id=f"job{i}")))
    for i in range(0, 330, 11):
        perform(verbs.release(f"lock:{i}", f"t{i}"))
        del fences[f"lock:{i}"]
    for i in range(5, 330, 11):
        place.lapse(f"lock:{i}", f"t{i}")
        del fences[f"lock:{i}"]
    perform(verbs.acquire(LockSpec("lock:3"), "waiter", Holder(), alive=60))
    listed = list(admin.list_locks(locks))
    assert len(listed) == len({lock.name for lock in listed})
    assert {lock.name: lock.holders[0].fence for lock in listed} == fences
    for lock in listed:
        number = int(lock.name.removeprefix("lock:"))
        assert lock.limit == 1 + number % 3
        assert [h.task_id for h in lock.holders] == [f"job{number}"]
        assert [w.token for w in lock.waiters] == (["waiter"] if number == 3 else [])
        assert 50 < lock.remaining < 60.001


def test_list_pages_are_bounded(place: Place) -> None:
    """One call that describes everything would block the server."""
    locks = place.locks(shards=1)
    for i in range(330):
        locks.perform(locks.verbs.acquire(LockSpec(f"n{i}"), f"t{i}", Holder()))
    page = locks.perform(locks.verbs.page())
    assert page.cursor
    assert 100 <= len(page.locks) < 200


def test_force_release_takes_it_from_the_holder(face: Face, other: Face, place: Place) -> None:
    lease = face.acquire("a", holder=Holder(task_id="t"))
    locks = place.locks()
    [taken] = admin.force_release(locks, "a")
    assert (taken.token, taken.task_id, taken.fence) == (lease.token, "t", lease.fence)
    assert place.keys() == {"fence"}
    with pytest.raises(LeaseLost):
        face.renew(lease)
    assert other.acquire("a").fence > lease.fence
    assert face.release(lease) is False
    assert other.is_locked("a")


@pytest.mark.usefixtures("without_repoll")
def test_force_release_gives_it_to_the_next_in_line(
    face: Face, other: Face, place: Place, in_thread: Callable[..., Any]
) -> None:
    face.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(face, "a", 1)
    admin.force_release(place.locks(), "a")
    assert waiter.result(timeout=20).token == face.holders("a")[0].token


def test_force_release_with_a_token_spares_the_others(face: Face, place: Place) -> None:
    one, two = face.acquire("s", limit=2), face.acquire("s", limit=2)
    locks = place.locks()
    assert admin.force_release(locks, "s", "no such token") == ()
    assert [h.token for h in admin.force_release(locks, "s", one.token)] == [one.token]
    face.renew(two)
    with pytest.raises(LeaseLost):
        face.renew(one)


def test_force_release_of_all_holders_of_a_semaphore(face: Face, place: Place) -> None:
    leases = [face.acquire("s", limit=3) for _ in range(3)]
    taken = admin.force_release(place.locks(), "s")
    assert {h.token for h in taken} == {lease.token for lease in leases}
    assert place.keys() == {"fence"}


def test_force_release_ends_the_rest_of_at_least(face: Face, place: Place) -> None:
    face.release(face.acquire("a", at_least=60))
    assert face.is_locked("a")
    assert len(admin.force_release(place.locks(), "a")) == 1
    assert place.keys() == {"fence"}


def test_force_release_of_a_free_or_lapsed_lock_takes_from_nobody(face: Face, place: Place) -> None:
    locks = place.locks()
    assert admin.force_release(locks, "a") == ()
    lease = face.acquire("a")
    place.lapse("a", lease.token)
    assert admin.force_release(locks, "a") == ()
    assert place.keys() == {"fence"}
