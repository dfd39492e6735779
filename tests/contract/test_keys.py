"""What stands in the store: names of any spelling, nothing left over, nothing foreign touched."""

import time

import pytest
import time_machine

from celery_locks import ForeignData, Holder, LeaseLost, admin
from celery_locks.core.renewer import renewer
from celery_locks.types import LockSpec
from tests.contract.faces import LeaseBackend
from tests.contract.places import FakePlace, Place

NAMES = [
    "ünïcødé 锁 🔒",
    "with spaces and\ttabs",
    "{braces} and }{ and {",
    "nul\0inside",
    "new\nline\r\n$5\r\nhello",
    "quote ' \" \\ %s %d",
    "-",
    "0",
    ":",
    "x" * 512,
    "é" * 256,
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[1:20])
def test_name_of_any_spelling(face: LeaseBackend, place: Place, name: str) -> None:
    lease = face.acquire(name)
    neighbour = face.acquire(name[:-1] + "!")
    assert face.acquire(name) is None
    face.renew(lease)
    info = face.info(name)
    assert info
    assert (info.name, info.holders[0].token) == (name, lease.token)
    listed = {lock.name for lock in admin.list_locks(place.locks())}
    assert listed == {name, neighbour.name}
    assert face.release(neighbour) is True
    assert face.release(lease) is True
    assert place.keys() == {"fence"}


def test_nothing_is_left_but_the_fence(
    face: LeaseBackend, other: LeaseBackend, place: Place
) -> None:
    ours = [face.acquire(f"n{i}", limit=2) for i in range(20)]
    theirs = [other.acquire(f"n{i}", limit=2, reentrant=True) for i in range(20)]
    assert other.acquire("n0", limit=2, wait=0.05) is None
    for one, another in zip(ours, theirs, strict=True):
        assert face.release(one) is True
        assert other.release(another) is True
    assert place.keys() == {"fence"}


def test_lapsed_names_are_forgotten_bit_by_bit(place: Place) -> None:
    """Workers that died leave names behind; taking other locks clears them, no reaper scans."""
    locks = place.locks(shards=1)
    old = (time.time() - 61) * 1000
    for i in range(4):
        locks.perform(locks.commands.acquire(LockSpec(f"old{i}"), f"t{i}", Holder()))
        locks.perform(locks.commands.acquire(LockSpec(f"old{i}"), f"w{i}", Holder(), alive=1))
    root = locks.commands.root("")
    for i in range(4):
        place.raw.zadd(f"{root}h:old{i}", {f"t{i}": old})
        place.raw.zadd(f"{root}index", {f"old{i}": old})
    for i in range(2):
        locks.perform(locks.commands.acquire(LockSpec(f"new{i}"), f"n{i}", Holder()))
        locks.perform(locks.commands.release(f"new{i}", f"n{i}"))
    assert place.keys() == {"fence"}


def test_lapsed_name_can_be_revived_until_it_is_forgotten(place: Place) -> None:
    locks = place.locks(shards=1)
    lease = locks.acquire("kept")
    assert lease
    recent = (time.time() - 50) * 1000
    place.raw.zadd(f"{locks.commands.root('')}h:kept", {lease.token: recent})
    place.raw.zadd(f"{locks.commands.root('')}index", {"kept": recent})
    fresh = locks.acquire("fresh")
    assert fresh
    lease.renew()
    assert {lock.name for lock in admin.list_locks(locks)} == {"kept", "fresh"}
    assert lease.release()
    assert fresh.release()
    assert place.keys() == {"fence"}


def test_a_minute_after_all_holders_died_one_acquire_clears_up() -> None:
    """The same with a clock that really moves, which only fakeredis lets us do."""
    place = FakePlace()
    locks = place.locks()
    with time_machine.travel(1_800_000_000, tick=False) as clock:
        locks.perform(locks.commands.acquire(LockSpec("dead", 30), "t", Holder()))
        clock.shift(89)
        locks.perform(locks.commands.acquire(LockSpec("x"), "x", Holder()))
        left = place.keys()
        assert "h:dead" in left
        clock.shift(1.001)
        locks.perform(locks.commands.acquire(LockSpec("y"), "y", Holder()))
        assert place.keys() == {"fence", "index", "records", "h:x", "h:y"}
    place.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("what", ["h:", "index", "records", "fence"])
def test_foreign_data_is_reported_and_left_alone(
    face: LeaseBackend, place: Place, what: str
) -> None:
    key = place.key(what, "a")
    place.raw.lpush(key, "theirs")
    with pytest.raises(ForeignData, match="left alone"):
        face.acquire("a")
    with pytest.raises(ForeignData):
        face.acquire("a", wait=1)
    assert place.raw.lrange(key, 0, -1) == [b"theirs"]
    place.raw.delete(key)
    assert face.acquire("a"), "the refused call took it all the same"


def test_lock_overwritten_by_others_is_lost(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a", ttl=2)
    key = place.key("h:", "a")
    place.raw.set(key, "theirs")
    with pytest.raises(LeaseLost):
        face.renew(lease)
    with pytest.raises(ForeignData):
        face.release(lease)
    assert place.raw.get(key) == b"theirs"
    renewer._pending_releases.pop(lease.token, None)


def test_lapsed_foreign_name_is_forgotten_but_not_deleted(place: Place) -> None:
    locks = place.locks(shards=1)
    root = locks.commands.root("")
    place.raw.zadd(f"{root}index", {"theirs": (time.time() - 61) * 1000})
    place.raw.set(f"{root}h:theirs", "theirs")
    lease = locks.acquire("a")
    assert lease
    lease.release()
    assert place.keys() == {"fence", "h:theirs"}


def test_prefixes_are_apart(place: Place, kind: str) -> None:
    one = place.face(kind)
    place.prefix += "x"
    two = place.face(kind)
    place.prefix = place.prefix[:-1]
    first, second = one.acquire("a"), two.acquire("a")
    assert first
    assert second
    assert one.release(first) is True
    assert two.release(second) is True
