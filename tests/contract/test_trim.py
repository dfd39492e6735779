"""What nobody needs any more is cleared up in short steps; what anybody may need stays."""

import time
from typing import Any

import pytest

from celery_locks import Holder, Locks, admin
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands
from celery_locks.store.commands.locks import PAGE, reservation_token
from celery_locks.types import LockSpec
from tests.contract.places import Place


@pytest.fixture
def locks(place: Place) -> Locks:
    return place.locks(shards=1)


def take(locks: Locks, name: str, token: str, **how: Any) -> Any:
    spec = LockSpec(name, how.pop("ttl", 30.0), how.pop("limit", 1))
    holder = how.pop("holder", Holder(task="bill", task_id=token))
    return locks.perform(locks.commands.acquire(spec, token, holder, **how))


def lapse(place: Place, locks: Locks, name: str, token: str, ago: float) -> None:
    root, moment = locks.commands.root(""), (time.time() - ago) * 1000
    place.raw.zadd(f"{root}h:{name}", {token: moment})
    place.raw.zadd(f"{root}index", {name: moment})


def test_trim_removes_what_nobody_needs(place: Place, locks: Locks) -> None:
    """Lapsed holders and waiters, orphaned records and names, stops of the gone, old marks."""
    root = locks.commands.root("")
    take(locks, "dead", "t")
    take(locks, "dead", "w", alive=0.001)
    admin.stop(locks, "dead")
    for token in ("t", "w"):
        record = place.raw.hget(f"{root}records", token).split(b" ", 2)
        record[1] = b"%d" % (int(record[1]) - 100_000)
        place.raw.hset(f"{root}records", token, b" ".join(record))
    take(locks, "wiped", "x")
    lapse(place, locks, "dead", "t", ago=61)
    place.raw.delete(f"{root}h:wiped")
    place.raw.zadd(f"{root}done", {"old": 1.0})
    place.raw.hset(f"{root}stops", "nobody", "1")
    before = place.keys()
    found = admin.trim(locks, dry_run=True)
    assert place.keys() == before
    assert found == 7, "t, w and x; two names; the stop of nobody; the old mark"
    # Some go together, so each is counted once or with another.
    assert 4 <= admin.trim(locks) <= 8
    assert place.keys() == {"fence", "log"}
    assert [act.name for act in admin.history(locks) if act.act == "lapsed"] == ["dead"]
    assert admin.trim(locks) == 0


def test_trim_spares_what_is_needed(place: Place, locks: Locks) -> None:
    """Holders, waiters, messages, the rest of at_least, and who lapsed a moment ago."""
    take(locks, "held", "h")
    take(locks, "held", "w", alive=60)
    take(locks, "queued", reservation_token("q"), holder=Holder(task_id="q", retries=-1))
    take(locks, "kept", "k")
    locks.perform(locks.commands.release("kept", "k", keep=60))
    take(locks, "late", "l")
    admin.stop(locks, "held")
    place.raw.zadd(place.key("done"), {"fresh": (time.time() + 60) * 1000})
    lapse(place, locks, "late", "l", ago=30)
    before = place.content()
    assert admin.trim(locks) == 0
    assert place.content() == before


def test_trim_gives_a_lapsed_slot_to_who_waits(place: Place, locks: Locks) -> None:
    """Where a waiter lives, no slot is free: clearing up must not break that."""
    take(locks, "a", "dead")
    take(locks, "a", "waits", alive=60)
    root = locks.commands.root("")
    place.raw.zadd(f"{root}h:a", {"dead": (time.time() - 61) * 1000})
    assert admin.trim(locks) == 1
    assert [holder.token for holder in locks.holders("a")] == ["waits"]


def test_trim_leaves_foreign_data_alone(place: Place, locks: Locks) -> None:
    take(locks, "theirs", "t")
    key = f"{locks.commands.root('')}h:theirs"
    place.raw.delete(key)
    place.raw.set(key, "theirs")
    place.raw.zadd(f"{locks.commands.root('')}index", {"theirs": 1.0})
    assert admin.trim(locks) == 1
    assert place.raw.get(key) == b"theirs"


def test_trim_goes_in_steps(place: Place, locks: Locks) -> None:
    for number in range(400):
        take(locks, f"n{number}", f"t{number}")
    root = locks.commands.root("")
    for number in range(400):
        place.raw.delete(f"{root}h:n{number}")
    cursor, count = locks.perform(AdminCommands(locks.commands).prune(root, PRUNED_KEYS[0]))
    assert cursor != "0"
    assert PAGE <= count < 2 * PAGE
    assert count + admin.trim(locks) == 800
    assert place.keys() == {"fence"}
