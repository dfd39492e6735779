"""One list for everybody, read no more often than it should be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_locks.errors import LockUnavailable
from celery_locks.types import Holder, LockInfo
from celery_locks.web.snapshot import Snapshot, SnapshotCache, counted
from tests.support.waiting import wait_until

DEADLINE = 30.0


class Store:
    """Locks that are there, how long reading them takes, and how often they were read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.takes = 0.0
        self.readings = 0
        self.locks = {"a": held("a"), "b": held("b")}
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.snapshot = SnapshotCache(self.read, self.look, lambda: self.now)

    def read(self) -> tuple[float, list[LockInfo]]:
        self.readings += 1
        found = list(self.locks.values())
        assert self.gate.wait(DEADLINE)
        self.now += self.takes
        if self.trouble:
            raise self.trouble
        return 5.0, found

    def look(self, name: str) -> LockInfo | None:
        return self.locks.get(name)


def held(name: str, as_of: float = 1.0, **said: object) -> LockInfo:
    return LockInfo(name, 1, (Holder(token="t", **said),), (), as_of)  # type: ignore[arg-type]


def names(shot: Snapshot) -> set[str]:
    return {lock.name for lock in shot.locks}


@pytest.fixture
def store() -> Store:
    return Store()


def test_recent_is_shared_for_a_second(store: Store) -> None:
    first = store.snapshot.recent()
    store.now += 0.9
    assert store.snapshot.recent() is first
    store.now += 0.2
    assert store.snapshot.recent() is not first
    assert store.readings == 2


def test_recent_is_read_once_for_all_who_wait(store: Store) -> None:
    store.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(store.snapshot.recent) for _ in range(8)]
        wait_until(lambda: store.readings, DEADLINE)
        store.gate.set()
        shots = {id(one.result(DEADLINE)) for one in asked}
    assert (len(shots), store.readings) == (1, 1)


def test_recent_is_read_less_often_where_reading_takes_long(store: Store) -> None:
    """Reading takes a fifth of the time at most."""
    store.takes = 4.0
    first = store.snapshot.recent()
    store.now = first.began + 19.9
    assert store.snapshot.recent() is first
    assert store.readings == 1


def test_recent_gives_the_last_list_while_the_next_is_read(store: Store) -> None:
    """Nobody waits for seconds once there is a list; but none is twice as old as it should be."""
    store.takes = 4.0
    first = store.snapshot.recent()
    store.gate.clear()
    store.now = first.began + 21.0
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.snapshot.recent)
        wait_until(lambda: store.readings == 2, DEADLINE)
        store.now += 1.0  # patience is over
        assert asked.result(DEADLINE) is first
        store.now = first.began + 41.0
        too_old = pool.submit(store.snapshot.recent)
        store.gate.set()
        assert too_old.result(DEADLINE) is not first


def test_exact_is_read_now_where_that_costs_little(store: Store) -> None:
    first = store.snapshot.recent()
    store.now += 0.001
    assert store.snapshot.exact() is not first
    store.takes = 1.0
    store.now += 0.001
    slow = store.snapshot.exact()
    store.now += 0.001
    assert store.snapshot.exact() is slow
    assert store.snapshot.fresh() is not slow


def test_trouble_is_told_to_all_and_over_when_it_is_over(store: Store) -> None:
    store.trouble = LockUnavailable("no answer")
    for _ in range(3):
        with pytest.raises(LockUnavailable, match="no answer"):
            store.snapshot.recent()
    assert store.readings == 1
    store.trouble = None
    store.now += 1.1
    assert names(store.snapshot.recent()) == {"a", "b"}


def test_changed_lock_is_shown_at_once(store: Store) -> None:
    """Whoever frees a lock does not see it held a moment later, nor is all read anew for it."""
    store.snapshot.recent()
    del store.locks["a"]
    store.locks["c"] = held("c")
    store.snapshot.look_again(["a", "c"])
    shot = store.snapshot.recent()
    assert (names(shot), shot.counts["held"]) == ({"b", "c"}, 2)
    assert store.readings == 1


def test_reading_that_began_before_a_change_does_not_undo_it(store: Store) -> None:
    store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.snapshot.recent)
        wait_until(lambda: store.readings, DEADLINE)
        del store.locks["a"]
        store.now += 0.1
        store.snapshot.look_again(["a"])
        store.gate.set()
        assert names(asked.result(DEADLINE)) == {"b"}
    store.now += 2.0
    store.locks["a"] = held("a")
    assert names(store.snapshot.recent()) == {"a", "b"}


def test_later_look_counts() -> None:
    shot = Snapshot((held("a", as_of=7.0, worker="new"),), 5.0, 0.0, 0.0)
    [lock] = shot.with_fixes({"a": held("a", as_of=6.0, worker="old")}).locks
    assert lock.holders[0].worker == "new"


@pytest.mark.parametrize(
    ("lock", "counts"),
    [
        (held("a"), {"held": 1, "waiting": 0, "queued": 0}),
        (held("a", retries=-1), {"held": 0, "waiting": 0, "queued": 1}),
        (LockInfo("a", 1, (), (Holder(),)), {"held": 0, "waiting": 1, "queued": 0}),
    ],
)
def test_counted_says_how_many_are_in_each_state(lock: LockInfo, counts: object) -> None:
    assert counted([lock]) == counts
