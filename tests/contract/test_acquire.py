"""Taking and giving back: one holder, one fence after the other, nothing half-taken."""

import os

import pytest

from celery_locks import Conflict, Holder, LimitMismatch, LockConflict, LockUsageError
from celery_locks.types import LockSpec
from tests.contract.faces import LeaseBackend
from tests.contract.places import Place


def test_acquire_gives_a_lease_and_then_none(face: LeaseBackend, other: LeaseBackend) -> None:
    lease = face.acquire("a")
    assert lease.name == "a"
    assert lease.remaining > 0
    assert other.acquire("a") is None
    assert face.acquire("a") is None, "the same process is no exception"


def test_acquire_of_another_name_is_free(face: LeaseBackend) -> None:
    assert face.acquire("a")
    assert face.acquire("b")


def test_try_acquire_tells_who_holds_it(face: LeaseBackend, other: LeaseBackend) -> None:
    lease = face.acquire(
        "a",
        ttl=20,
        holder=Holder(
            task_id="id 1", task="shop.bill", retries=2, worker="w@h", extra={"queue": "q"}
        ),
    )
    conflict = other.try_acquire("a")
    assert isinstance(conflict, Conflict)
    assert conflict.name == "a"
    assert 19 < conflict.lapses_in < 20.001
    assert conflict.position == 1
    [holder] = conflict.holders
    assert (holder.token, holder.fence) == (lease.token, lease.fence)
    assert (holder.task_id, holder.task, holder.retries) == ("id 1", "shop.bill", 2)
    assert (holder.worker, holder.extra) == ("w@h", {"queue": "q"})
    assert abs(holder.acquired_at - lease.acquired_at) < 5
    assert holder.ttl == 20


def test_hold_holds_while_the_block_runs(face: LeaseBackend, other: LeaseBackend) -> None:
    with face.hold("a") as lease:
        assert other.is_locked("a")
        lease.check()
    assert not other.is_locked("a")


def test_hold_releases_when_the_block_raises(face: LeaseBackend) -> None:
    with pytest.raises(KeyError):
        with face.hold("a"):
            raise KeyError("x")
    assert not face.is_locked("a")


def test_hold_raises_a_conflict_with_the_holder(face: LeaseBackend, other: LeaseBackend) -> None:
    """Who reads the message must see where to look."""
    with face.hold("a") as lease:
        with pytest.raises(LockConflict) as caught:
            with other.hold("a"):
                pytest.fail("entered a lock that is held")
    assert caught.value.name == "a"
    assert caught.value.holder
    assert caught.value.holder.token == lease.token
    assert caught.value.holder.pid == os.getpid()
    assert f"pid {os.getpid()}" in str(caught.value)


def test_hold_that_is_not_required_yields_none(face: LeaseBackend, other: LeaseBackend) -> None:
    with face.hold("a"):
        with other.hold("a", required=False) as nothing:
            assert nothing is None
        assert face.is_locked("a"), "leaving the empty block freed somebody else's lock"


def test_release_is_idempotent(face: LeaseBackend, other: LeaseBackend) -> None:
    lease = face.acquire("a")
    assert face.release(lease) is True
    taken = other.acquire("a")
    assert taken
    assert face.release(lease) is False
    assert other.is_locked("a")


def test_release_frees_only_its_own(face: LeaseBackend, other: LeaseBackend, place: Place) -> None:
    """It lapsed and somebody else has it now: the late release must not free theirs."""
    late = face.acquire("a")
    place.lapse("a", late.token)
    current = other.acquire("a")
    assert current
    assert face.release(late) is False
    assert [h.token for h in other.holders("a")] == [current.token]


def test_release_of_a_lapsed_but_untaken_lock_frees_it(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a")
    place.lapse("a", lease.token)
    assert face.release(lease) is True
    assert place.keys() == {"fence"}


def test_acquire_twice_with_one_token_gives_one_fence(place: Place) -> None:
    """The reply was lost and the call sent again: the same lease, not an orphan."""
    locks = place.locks()
    call = locks.commands.acquire(LockSpec("a", 20), "token", Holder())
    fence = locks.perform(call)
    before = place.content()
    assert locks.perform(call) == fence
    assert place.content().keys() == before.keys()
    assert locks.perform(locks.commands.release("a", "token"))
    assert not locks.is_locked("a")


def test_fence_rises_strictly(face: LeaseBackend, other: LeaseBackend, place: Place) -> None:
    """Also when the server forgets everything in between."""
    fences = []
    for turn in range(30):
        turns = (face, other)[turn % 2]
        lease = turns.acquire("a")
        fences.append(lease.fence)
        if turn % 3 == 0:
            place.wipe()
        elif turn % 3 == 1:
            place.lapse("a", lease.token)
        else:
            turns.release(lease)
    assert fences == sorted(set(fences))


def test_fence_rises_even_if_the_servers_clock_went_back(place: Place) -> None:
    locks = place.locks()
    ahead = 4_000_000_000_000_000
    place.raw.set(place.key("fence", "a"), ahead)
    first = locks.acquire("a")
    assert first
    assert first.fence == ahead + 1
    first.release()
    second = locks.acquire("a")
    assert second
    assert second.fence == ahead + 2
    second.release()


def test_limit_admits_so_many_and_no_more(face: LeaseBackend, other: LeaseBackend) -> None:
    leases = [face.acquire("s", limit=3) for _ in range(3)]
    assert all(leases)
    conflict = other.try_acquire("s", limit=3)
    assert isinstance(conflict, Conflict)
    assert {h.token for h in conflict.holders} == {lease.token for lease in leases}
    face.release(leases[1])
    assert other.acquire("s", limit=3)
    assert other.acquire("s", limit=3) is None
    info = other.info("s")
    assert info
    assert (info.limit, len(info.holders)) == (3, 3)


def test_limit_room_of_a_lapsed_holder_is_used(face: LeaseBackend, place: Place) -> None:
    first, second = face.acquire("s", limit=2), face.acquire("s", limit=2)
    place.lapse("s", first.token)
    third = face.acquire("s", limit=2)
    assert {h.token for h in face.holders("s")} == {second.token, third.token}
    assert face.acquire("s", limit=2) is None


@pytest.mark.parametrize(("held", "asked"), [(1, 2), (2, 1), (3, 4)])
def test_limit_unlike_the_held_one_is_refused(
    face: LeaseBackend, other: LeaseBackend, place: Place, held: int, asked: int
) -> None:
    """Two limits on one name would admit more than one side believes."""
    assert face.acquire("s", limit=held)
    before = place.content()
    with pytest.raises(LimitMismatch, match=f"limit {held}, not {asked}"):
        other.acquire("s", limit=asked)
    with pytest.raises(LimitMismatch):
        other.acquire("s", limit=asked, wait=5)
    assert place.content() == before


def test_limit_may_change_once_nobody_holds_it(face: LeaseBackend, place: Place) -> None:
    face.release(face.acquire("s", limit=2))
    lapsed = face.acquire("s", limit=3)
    place.lapse("s", lapsed.token)
    assert face.acquire("s", limit=1)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("", {}),
        ("x" * 513, {}),
        ("a", {"ttl": 0.5}),
        ("a", {"ttl": float("inf")}),
        ("a", {"limit": 0}),
        ("a", {"wait": -1}),
        ("a", {"at_least": float("nan")}),
    ],
)
def test_acquire_refuses_bad_input_and_takes_nothing(
    face: LeaseBackend, place: Place, name: str, asked: dict[str, float]
) -> None:
    with pytest.raises(LockUsageError):
        face.acquire(name, **asked)
    assert place.keys() == set()


def test_scripts_are_reloaded_when_the_server_lost_them(face: LeaseBackend, place: Place) -> None:
    place.script_flush()
    lease = face.acquire("a")
    place.script_flush()
    face.renew(lease)
    place.script_flush()
    assert face.info("a")
    place.script_flush()
    assert face.release(lease) is True
    assert place.keys() == {"fence"}
