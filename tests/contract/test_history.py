"""The history of holds, and the usual duration of a task; short holds are not noted."""

import time
from typing import Any

import pytest
import time_machine

from celery_locks import Holder, Locks, admin
from celery_locks.core.lease import MIN_NOTED_HOLD
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import AcquireExtras, Mark, reservation_token
from celery_locks.types import LockSpec
from celery_locks.validation import QUEUED
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend, FakeBackend

TASK = Holder(task_id="j", task='shop.bïll "x" \\', worker="w", host="h", pid=7)


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks(shards=1)


def take(locks: Locks, name: str, token: str, holder: Holder = TASK, **options: Any) -> Any:
    spec = LockSpec(name, options.pop("ttl", 30.0), options.pop("limit", 1))
    alive, extras = options.pop("alive", 0), AcquireExtras(**options)
    return locks.perform(locks.commands.acquire(spec, token, holder, alive=alive, extras=extras))


def age(backend: Backend, locks: Locks, token: str, seconds: float) -> None:
    """Pretend that it was granted so many seconds ago."""
    key = f"{locks.commands.root('')}records"
    fence, since, rest = backend.raw.hget(key, token).split(b" ", 2)
    since = int(since) - round(seconds * 1000)
    backend.raw.hset(key, token, b"%s %d %s" % (fence, since, rest))


def lapse(backend: Backend, locks: Locks, name: str, token: str, ago: float = 1.0) -> None:
    key, expiry_ms = f"{locks.commands.root('')}h:{name}", (time.time() - ago) * 1000
    backend.raw.zadd(key, {token: expiry_ms})
    backend.raw.zadd(f"{locks.commands.root('')}index", {name: expiry_ms})


def release(locks: Locks, name: str, token: str, note: str | None = "", **options: Any) -> Any:
    return locks.perform(locks.commands.release(name, token, history_note=note, **options))


def past(locks: Locks) -> list[tuple[str, str, str]]:
    return [(entry.act, entry.name, entry.why) for entry in admin.history(locks)]


def test_hold_of_a_second_is_written_down_by_its_lease(api: LocksApi, backend: Backend) -> None:
    """In both APIs; a short hold is not noted and leaves nothing."""
    short = api.acquire("short", holder=TASK)
    api.release(short)
    was_short = short.held_for < MIN_NOTED_HOLD  # a machine may stall us
    lease = api.acquire("long", holder=TASK)
    time.sleep(1.1)
    api.release(lease)
    locks = backend.locks()
    [entry] = admin.history(locks, "long")
    assert (entry.act, entry.name, entry.by, entry.why) == ("held", "long", "", "")
    assert entry.held_for
    assert 1.0 <= entry.held_for < 30
    [holder] = entry.holders
    assert (holder.token, holder.fence, holder.task) == (lease.token, lease.fence, TASK.task)
    assert entry.at == pytest.approx(holder.acquired_at + entry.held_for, abs=1)
    assert admin.history(locks) == [entry] or not was_short
    assert admin.history(locks, "short") == [] or not was_short
    assert admin.history(locks, only_actions=True) == []
    assert backend.keys(past=True) == {"fence", "past", "usual"}


def test_release_that_says_nothing_or_is_repeated_writes_nothing(
    backend: Backend, locks: Locks
) -> None:
    for name, say in (("a", None), ("b", "")):
        take(locks, name, name)
        age(backend, locks, name, 5)
        assert release(locks, name, name, say)
        assert not release(locks, name, name, say)
    assert past(locks) == [("held", "b", "")]


def test_note_goes_with_marks_and_with_at_least(backend: Backend, locks: Locks) -> None:
    """The rest of at_least is no hold: it is not noted when it lapses."""
    take(locks, "a", "t")
    age(backend, locks, "t", 5)
    marks = [Mark("e:j1", 1, 60), Mark("e:j2", 1, 60)]
    assert release(locks, "a", "t", keep_for=60, marks=marks)
    assert past(locks) == [("held", "a", "")]
    assert {"e:j1", "e:j2"} <= backend.keys()
    assert locks.is_locked("a")
    age(backend, locks, "-t", 100)
    lapse(backend, locks, "a", "-t")
    assert take(locks, "a", "next") > 0
    assert past(locks) == [("held", "a", "")]


def test_reservation_is_no_hold(backend: Backend, locks: Locks) -> None:
    """Neither released, nor taken over by its run, nor lapsed."""
    message = Holder(task_id="j", task="bill", retries=-1)
    for name in ("back", "begun", "beside" + QUEUED, "lapsed"):
        token = reservation_token(name)
        take(locks, name, token, Holder(task_id=name, task="bill", retries=-1))
        age(backend, locks, token, 100)
    release(locks, "back", reservation_token("back"))
    take(locks, "begun", "run", Holder(task_id="begun", task="bill"))
    reservation = ("beside" + QUEUED, reservation_token("beside" + QUEUED))
    take(
        locks, "beside", "run2", Holder(task_id="beside", task="bill"), release_on_grant=reservation
    )
    lapse(backend, locks, "lapsed", reservation_token("lapsed"))
    assert take(locks, "lapsed", "other", message) > 0
    assert past(locks) == []


def test_attempt_that_was_taken_over_is_written_down(backend: Backend, locks: Locks) -> None:
    take(locks, "a", "first")
    age(backend, locks, "first", 5)
    take(locks, "a", "second", Holder(task_id="j", task="bill", retries=1))
    assert not release(locks, "a", "first")
    assert past(locks) == [("held", "a", "its next attempt took it over")]


@pytest.mark.parametrize("found_by", ["newcomer", "release of another", "force_release"])
def test_lapsed_hold_is_written_down_by_who_meets_it(
    backend: Backend, locks: Locks, found_by: str
) -> None:
    take(locks, "s", "dead", limit=2)
    take(locks, "s", "alive", Holder(), limit=2)
    age(backend, locks, "dead", 1000)
    take(locks, "s", "waits", Holder(), limit=2, alive=60)
    lapse(backend, locks, "s", "dead", ago=3)
    if found_by == "newcomer":
        take(locks, "s", "new", Holder(), limit=2)
    elif found_by == "force_release":
        admin.force_release(locks, "s", "dead")
    else:
        release(locks, "s", "alive", None)
    [entry] = admin.history(locks)
    assert (entry.act, entry.name, entry.holders[0].token) == ("lapsed", "s", "dead")
    assert entry.held_for == pytest.approx(997, abs=20)
    assert admin.usual(locks) == {}


def test_lapsed_name_that_is_forgotten_is_written_down(backend: Backend, locks: Locks) -> None:
    """But not its waiters, nor a grant that nobody claimed."""
    take(locks, "dead", "t")
    take(locks, "dead", "w", Holder(), alive=60)
    age(backend, locks, "t", 100)
    lapse(backend, locks, "dead", "t", ago=61)
    take(locks, "claim", "c")
    lapse(backend, locks, "claim", "c", ago=61)
    root = locks.commands.root("")
    expiry = backend.raw.zscore(f"{root}h:claim", "c")
    fence, _, rest = backend.raw.hget(f"{root}records", "c").split(b" ", 2)
    backend.raw.hset(f"{root}records", "c", b"%s %d %s" % (fence, expiry - 999, rest))
    locks.run(AdminCommands(locks.commands).prune_lapsed(root, "index", time.time(), 3))
    assert [(entry.act, entry.name, entry.holders[0].token) for entry in admin.history(locks)] == [
        ("lapsed", "dead", "t")
    ]


def test_past_holds_and_actions_are_one_history(backend: Backend, locks: Locks) -> None:
    take(locks, "a", "t1")
    age(backend, locks, "t1", 500)
    release(locks, "a", "t1", "process 7 died")
    time.sleep(0.005)  # the order of two entries in one millisecond is not known
    take(locks, "a", "t2")
    admin.force_release(locks, "a", by="ann")
    time.sleep(0.005)
    take(locks, "a", "t3")
    age(backend, locks, "t3", 245)
    release(locks, "a", "t3")
    entries = admin.history(locks, "a")
    assert [entry.act for entry in entries] == ["held", "force_release", "held"]
    assert [entry.held_for is None for entry in entries] == [False, True, False]
    assert entries[0].as_dict()["held_for"] == pytest.approx(245, abs=20)
    assert "released lock 'a' after 4 min " in admin.describe_entry(entries[0])
    assert "had lock 'a' for 8 min " in admin.describe_entry(entries[2])
    assert admin.describe_entry(entries[2]).endswith(": process 7 died.")
    assert len(admin.history(locks, "a", limit=2)) == 2


def test_past_keeps_the_last_thousand_or_so(backend: Backend, locks: Locks) -> None:
    stream = f"{locks.commands.root('')}past"
    for number in range(1300):
        backend.raw.xadd(stream, {"act": "held", "name": "a", "held": number})
    take(locks, "a", "t")
    age(backend, locks, "t", 5)
    release(locks, "a", "t")
    assert 1000 <= backend.raw.xlen(stream) < 1200
    assert admin.history(locks, limit=1)[0].holders[0].token == "t"


def test_foreign_data_under_their_keys_does_not_block_a_release(
    backend: Backend, locks: Locks
) -> None:
    root = locks.commands.root("")
    for name in ("past", "usual"):
        backend.raw.set(f"{root}{name}", "theirs")
    take(locks, "a", "t")
    age(backend, locks, "t", 5)
    assert release(locks, "a", "t")
    assert not locks.is_locked("a")
    assert backend.raw.get(f"{root}past") == backend.raw.get(f"{root}usual") == b"theirs"


def test_usual_is_the_median_of_the_last_sixteen(backend: Backend, locks: Locks) -> None:
    """Of a task, whatever the lock's name; without holds that were interrupted."""
    for number in range(40):
        take(locks, f"lock:{number}", f"{number}")
        age(backend, locks, f"{number}", 1000 + 100 * number if number >= 24 else 5)
        release(locks, f"lock:{number}", f"{number}")
    take(locks, "cut", "c")
    age(backend, locks, "c", 9000)
    release(locks, "cut", "c", "process 7 died")
    take(locks, "plain", "p", Holder(host="h"))
    age(backend, locks, "p", 9000)
    release(locks, "plain", "p")
    found = admin.usual(locks)
    assert set(found) == {TASK.task}
    assert found[TASK.task].holds == 16
    assert found[TASK.task].held_for == pytest.approx(4150, abs=40)
    assert admin.usual(locks, ["nobody's", TASK.task]) == found


def test_usual_is_of_a_tasks_own_lock_only(backend: Backend, locks: Locks) -> None:
    """A lock that the task's code holds for a short time says nothing about the task."""
    take(locks, "a", "x", TASK._replace(nested=True))
    age(backend, locks, "x", 5)
    release(locks, "a", "x")
    assert past(locks) == [("held", "a", "")]
    assert admin.usual(locks) == {}


def test_usual_has_a_thousand_tasks_at_most(backend: Backend, locks: Locks) -> None:
    key = f"{locks.commands.root('')}usual"
    backend.raw.hset(key, mapping={f"t{n}": "1000 2000 " for n in range(1000)})
    take(locks, "a", "t")
    age(backend, locks, "t", 5)
    release(locks, "a", "t")
    assert backend.raw.hlen(key) == 1000
    assert TASK.task in admin.usual(locks)


def test_usual_of_all_shards_is_one(backend: Backend) -> None:
    locks = backend.locks(shards=4)
    for number in range(12):
        name = f"lock:{number}"
        take(locks, name, f"t{number}")
        key = f"{locks.commands.root(name)}records"
        fence, since, rest = backend.raw.hget(key, f"t{number}").split(b" ", 2)
        backend.raw.hset(key, f"t{number}", b"%s %d %s" % (fence, int(since) - 60_000, rest))
        release(locks, name, f"t{number}")
    assert len({locks.commands.root(f"lock:{n}") for n in range(12)}) > 1
    assert admin.usual(locks)[TASK.task].holds == 12


def test_note_is_by_the_stores_clock() -> None:
    backend = FakeBackend()
    locks = backend.locks()
    with time_machine.travel(1_800_000_000, tick=False) as clock:
        take(locks, "a", "t", ttl=600)
        clock.shift(245)
        release(locks, "a", "t")
        [entry] = admin.history(locks)
    assert (entry.held_for, entry.at) == (245.0, 1_800_000_245.0)
    backend.close()
