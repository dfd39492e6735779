"""The keys in the store: any name works, nothing is left over, no foreign key is touched."""

import time

import pytest
import time_machine

from celery_locks import ForeignData, Holder, LeaseLost, Locks, admin
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import PAGE
from celery_locks.store.commands.replies import Renewal
from celery_locks.store.effects import Call
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend, FakeBackend

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
def test_name_of_any_spelling(api: LocksApi, backend: Backend, name: str) -> None:
    lease = api.acquire(name)
    neighbour = api.acquire(name[:-1] + "!")
    assert api.acquire(name) is None
    api.renew(lease)
    info = api.info(name)
    assert info
    assert (info.name, info.holders[0].token) == (name, lease.token)
    listed = {lock.name for lock in admin.list_locks(backend.locks())}
    assert listed == {name, neighbour.name}
    assert api.release(neighbour) is True
    assert api.release(lease) is True
    assert backend.keys() == {"fence"}


def test_nothing_is_left_but_the_fence(api: LocksApi, other: LocksApi, backend: Backend) -> None:
    first_leases = [api.acquire(f"n{i}", limit=2) for i in range(20)]
    second_leases = [other.acquire(f"n{i}", limit=2, reentrant=True) for i in range(20)]
    assert other.acquire("n0", limit=2, wait=0.05) is None
    for first, second in zip(first_leases, second_leases, strict=True):
        assert api.release(first) is True
        assert other.release(second) is True
    assert backend.keys() == {"fence"}


def cleanup(locks: Locks, part: str = "index") -> bool:
    """Do what the background job does; True if there may be more."""
    commands = AdminCommands(locks.commands)
    return locks.run(commands.prune_lapsed(locks.commands.roots[0], part, time.time(), 3))


def test_lapsed_names_are_deleted_page_by_page(backend: Backend) -> None:
    """Dead workers leave names behind; they are found by their age, without any scan."""
    locks = backend.locks(shards=1)
    old, root = (time.time() - 61) * 1000, locks.commands.root("")
    for i in range(PAGE + 2):
        locks.perform(locks.commands.acquire(LockSpec(f"old{i}"), f"t{i}", Holder()))
        locks.perform(locks.commands.acquire(LockSpec(f"old{i}"), f"w{i}", Holder(), alive=1))
        backend.raw.zadd(f"{root}h:old{i}", {f"t{i}": old})
        backend.raw.zadd(f"{root}index", {f"old{i}": old})
    assert cleanup(locks) is True
    assert backend.raw.zcard(f"{root}index") == 2
    assert cleanup(locks) is False
    assert backend.keys() == {"fence"}


def test_index_keeps_a_name_for_as_long_as_its_holders(backend: Backend) -> None:
    """An index that is early lets the cleanup look at locks that are held, again and again."""
    locks = backend.locks(shards=1)
    commands, root = locks.commands, locks.commands.root("")

    def assert_index_is_not_early(name: str, token: str, at_least: float) -> None:
        expiry = backend.raw.zscore(f"{root}h:{name}", token)
        assert expiry >= (time.time() + at_least) * 1000
        assert backend.raw.zscore(f"{root}index", name) >= expiry

    for name in ("renewed", "kept"):
        locks.perform(commands.acquire(LockSpec(name, 1), "t", Holder()))
    locks.perform(commands.renew([Renewal("renewed", "t", 60)], 3))
    assert_index_is_not_early("renewed", "t", at_least=30)
    assert locks.perform(commands.release("kept", "t", keep_for=60, next_token="next")) == 1
    assert_index_is_not_early("kept", "next", at_least=30)


def test_name_that_was_acquired_again_is_not_deleted(backend: Backend) -> None:
    """Between the look and the deletion another process may acquire the lock."""
    locks = backend.locks(shards=1)
    root = locks.commands.root("")
    backend.raw.zadd(f"{root}index", {"a": (time.time() - 61) * 1000})
    steps = AdminCommands(locks.commands).prune_lapsed(root, "index", time.time(), 3)
    prune = steps.send(locks.perform(next(steps)))
    assert isinstance(prune, Call)
    lease = locks.acquire("a")
    assert lease
    assert locks.perform(prune) == 0
    lease.renew()
    assert [lock.name for lock in admin.list_locks(locks)] == ["a"]
    assert lease.release()


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_clock_of_the_caller_deletes_nothing(backend: Backend, ahead: float) -> None:
    """It may be wrong; the server's clock decides what has lapsed."""
    locks = backend.locks(shards=1)
    locks.perform(locks.commands.acquire(LockSpec("a"), "t", Holder()))
    before, root = backend.content(), locks.commands.root("")
    steps = AdminCommands(locks.commands).prune_lapsed(root, "index", time.time() + ahead, 3)
    assert locks.run(steps) is False
    assert backend.content() == before


def test_index_of_completed_work_loses_expired_names(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    key = f"{locks.commands.root('')}completed"
    times = {"old": (time.time() - 1) * 1000, "fresh": (time.time() + 60) * 1000}
    backend.raw.zadd(key, times)
    assert cleanup(locks, "completed") is False
    assert backend.raw.zrange(key, 0, -1) == [b"fresh"]


def test_lapsed_name_can_be_revived_until_it_is_forgotten(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    lease = locks.acquire("kept")
    assert lease
    recent = (time.time() - 50) * 1000
    backend.raw.zadd(f"{locks.commands.root('')}h:kept", {lease.token: recent})
    backend.raw.zadd(f"{locks.commands.root('')}index", {"kept": recent})
    cleanup(locks)
    fresh = locks.acquire("fresh")
    assert fresh
    lease.renew()
    assert {lock.name for lock in admin.list_locks(locks)} == {"kept", "fresh"}
    assert lease.release()
    assert fresh.release()
    assert backend.keys() == {"fence"}


def test_a_minute_after_all_holders_died_their_names_are_deleted() -> None:
    """The same with a clock that moves, which only fakeredis allows."""
    backend = FakeBackend()
    locks = backend.locks()
    with time_machine.travel(1_800_000_000, tick=False) as clock:
        locks.perform(locks.commands.acquire(LockSpec("dead", 30), "t", Holder()))
        clock.shift(89)
        locks.perform(locks.commands.acquire(LockSpec("x"), "x", Holder()))
        cleanup(locks)
        left = backend.keys()
        assert "h:dead" in left
        clock.shift(1.001)
        cleanup(locks)
        assert backend.keys() == {"fence", "index", "records", "h:x"}
    backend.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("what", ["h:", "index", "records", "fence"])
def test_foreign_data_is_reported_and_left_alone(
    api: LocksApi, backend: Backend, what: str
) -> None:
    key = backend.key(what, "a")
    backend.raw.lpush(key, "theirs")
    with pytest.raises(ForeignData, match="left alone"):
        api.acquire("a")
    with pytest.raises(ForeignData):
        api.acquire("a", wait=1)
    assert backend.raw.lrange(key, 0, -1) == [b"theirs"]
    backend.raw.delete(key)
    assert api.acquire("a"), "the refused call took it all the same"


def test_lock_overwritten_by_others_is_lost(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", ttl=2)
    key = backend.key("h:", "a")
    backend.raw.set(key, "theirs")
    with pytest.raises(LeaseLost):
        api.renew(lease)
    with pytest.raises(ForeignData):
        api.release(lease)
    assert backend.raw.get(key) == b"theirs"
    renewer._pending_releases.pop(lease.token, None)


def test_lapsed_foreign_name_is_forgotten_but_not_deleted(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    root = locks.commands.root("")
    backend.raw.zadd(f"{root}index", {"theirs": (time.time() - 61) * 1000})
    backend.raw.set(f"{root}h:theirs", "theirs")
    cleanup(locks)
    assert backend.keys() == {"h:theirs"}


def test_prefixes_are_apart(backend: Backend, kind: str) -> None:
    api = backend.api(kind)
    backend.prefix += "x"
    other = backend.api(kind)
    backend.prefix = backend.prefix[:-1]
    first, second = api.acquire("a"), other.acquire("a")
    assert first
    assert second
    assert api.release(first) is True
    assert other.release(second) is True
