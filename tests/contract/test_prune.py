"""Entries that nobody needs are deleted in short steps; what may be needed stays."""

import time
from typing import Any

import pytest

from celery_locks import Holder, Locks, admin
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands
from celery_locks.store.commands.locks import PAGE, reservation_token
from celery_locks.types import LockSpec
from tests.contract.backends import Backend


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks(shards=1)


def take(locks: Locks, name: str, token: str, **options: Any) -> Any:
    spec = LockSpec(name, options.pop("ttl", 30.0), options.pop("limit", 1))
    holder = options.pop("holder", Holder(task="bill", task_id=token))
    return locks.perform(locks.commands.acquire(spec, token, holder, **options))


def lapse(backend: Backend, locks: Locks, name: str, token: str, ago: float) -> None:
    root, expiry_ms = locks.commands.root(""), (time.time() - ago) * 1000
    backend.raw.zadd(f"{root}h:{name}", {token: expiry_ms})
    backend.raw.zadd(f"{root}index", {name: expiry_ms})


def test_prune_deletes_what_nobody_needs(backend: Backend, locks: Locks) -> None:
    """Lapsed holders and waiters, orphaned records and names, old marks."""
    root = locks.commands.root("")
    take(locks, "dead", "t")
    take(locks, "dead", "w", alive=0.001)
    admin.stop(locks, "dead")
    for token in ("t", "w"):
        record = backend.raw.hget(f"{root}records", token).split(b" ", 2)
        record[1] = b"%d" % (int(record[1]) - 100_000)
        backend.raw.hset(f"{root}records", token, b" ".join(record))
    take(locks, "wiped", "x")
    lapse(backend, locks, "dead", "t", ago=61)
    backend.raw.delete(f"{root}h:wiped")
    backend.raw.zadd(f"{root}completed", {"old": 1.0})
    before = backend.keys()
    found = admin.trim(locks, dry_run=True)
    assert backend.keys() == before
    assert found == 6, "t, w and x; two names; the old mark"
    # Some are deleted together, so each is counted once or with another.
    assert 4 <= admin.trim(locks) <= 8
    assert backend.keys() == {"fence", "log", "notices"}
    assert [entry.name for entry in admin.history(locks) if entry.act == "lapsed"] == ["dead"]
    assert admin.trim(locks) == 0


def test_trim_spares_what_is_needed(backend: Backend, locks: Locks) -> None:
    """Holders, waiters, messages, the rest of at_least, and holders that lapsed just now."""
    take(locks, "held", "h")
    take(locks, "held", "w", alive=60)
    take(locks, "queued", reservation_token("q"), holder=Holder(task_id="q", retries=-1))
    take(locks, "kept", "k")
    locks.perform(locks.commands.release("kept", "k", keep_for=60))
    take(locks, "late", "l")
    admin.stop(locks, "held")
    backend.raw.zadd(backend.key("completed"), {"fresh": (time.time() + 60) * 1000})
    lapse(backend, locks, "late", "l", ago=30)
    before = backend.content()
    assert admin.trim(locks) == 0
    assert backend.content() == before


def test_trim_gives_a_lapsed_slot_to_who_waits(backend: Backend, locks: Locks) -> None:
    """While a waiter is alive, no slot is free: pruning must not break that."""
    take(locks, "a", "dead")
    take(locks, "a", "waits", alive=60)
    root = locks.commands.root("")
    backend.raw.zadd(f"{root}h:a", {"dead": (time.time() - 61) * 1000})
    assert admin.trim(locks) == 1
    assert [holder.token for holder in locks.holders("a")] == ["waits"]


def test_trim_leaves_foreign_data_alone(backend: Backend, locks: Locks) -> None:
    take(locks, "theirs", "t")
    key = f"{locks.commands.root('')}h:theirs"
    backend.raw.delete(key)
    backend.raw.set(key, "theirs")
    backend.raw.zadd(f"{locks.commands.root('')}index", {"theirs": 1.0})
    assert admin.trim(locks) == 1
    assert backend.raw.get(key) == b"theirs"


def test_trim_goes_in_steps(backend: Backend, locks: Locks) -> None:
    for number in range(400):
        take(locks, f"n{number}", f"t{number}")
    root = locks.commands.root("")
    for number in range(400):
        backend.raw.delete(f"{root}h:n{number}")
    cursor, count = locks.run(AdminCommands(locks.commands).prune(root, PRUNED_KEYS[0]))
    assert cursor != "0"
    assert PAGE <= count < 2 * PAGE
    assert count + admin.trim(locks) == 800
    assert backend.keys() == {"fence"}
