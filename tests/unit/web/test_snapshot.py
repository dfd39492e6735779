"""One list for all viewers, read no more often than it should be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_locks.errors import LockUnavailable
from celery_locks.types import Holder, LockInfo
from celery_locks.web.snapshot import Snapshot, SnapshotCache, count_states
from tests.support.waiting import wait_until

DEADLINE = 30.0


class Store:
    """A store: its locks, how long reading them takes, and how often they were read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.takes = 0.0
        self.readings = 0
        self.locks = {"a": held("a"), "b": held("b")}
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.snapshots = SnapshotCache(self.read, self.read_one, lambda: self.now)

    def read(self) -> tuple[float, list[LockInfo]]:
        self.readings += 1
        found = list(self.locks.values())
        assert self.gate.wait(DEADLINE)
        self.now += self.takes
        if self.trouble:
            raise self.trouble
        return 5.0, found

    def read_one(self, name: str) -> LockInfo | None:
        return self.locks.get(name)


def held(name: str, as_of: float = 1.0, **fields: object) -> LockInfo:
    return LockInfo(name, 1, (Holder(token="t", **fields),), (), as_of)  # type: ignore[arg-type]


def names(snapshot: Snapshot) -> set[str]:
    return {lock.name for lock in snapshot.locks}


@pytest.fixture
def store() -> Store:
    return Store()


def test_recent_is_shared_for_a_second(store: Store) -> None:
    first = store.snapshots.recent()
    store.now += 0.9
    assert store.snapshots.recent() is first
    store.now += 0.2
    assert store.snapshots.recent() is not first
    assert store.readings == 2


def test_recent_is_read_once_for_all_callers(store: Store) -> None:
    store.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(store.snapshots.recent) for _ in range(8)]
        wait_until(lambda: store.readings, DEADLINE)
        store.gate.set()
        found = {id(call.result(DEADLINE)) for call in calls}
    assert (len(found), store.readings) == (1, 1)


def test_recent_is_read_less_often_if_reading_is_slow(store: Store) -> None:
    """Reading takes at most a fifth of the time."""
    store.takes = 4.0
    first = store.snapshots.recent()
    store.now = first.began + 19.9
    assert store.snapshots.recent() is first
    assert store.readings == 1


def test_recent_gives_the_last_list_while_the_next_is_read(store: Store) -> None:
    """Nobody waits for seconds once there is a list; but no list is more than twice too old."""
    store.takes = 4.0
    first = store.snapshots.recent()
    store.gate.clear()
    store.now = first.began + 21.0
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(store.snapshots.recent)
        wait_until(lambda: store.readings == 2, DEADLINE)
        store.now += 1.0  # past the longest wait
        assert call.result(DEADLINE) is first
        store.now = first.began + 41.0
        too_old = pool.submit(store.snapshots.recent)
        store.gate.set()
        assert too_old.result(DEADLINE) is not first


def test_exact_is_read_now_if_that_is_cheap(store: Store) -> None:
    first = store.snapshots.recent()
    store.now += 0.001
    assert store.snapshots.exact() is not first
    store.takes = 1.0
    store.now += 0.001
    slow = store.snapshots.exact()
    store.now += 0.001
    assert store.snapshots.exact() is slow
    assert store.snapshots.fresh() is not slow


def test_error_is_raised_to_all_until_a_reading_succeeds(store: Store) -> None:
    store.trouble = LockUnavailable("no answer")
    for _ in range(3):
        with pytest.raises(LockUnavailable, match="no answer"):
            store.snapshots.recent()
    assert store.readings == 1
    store.trouble = None
    store.now += 1.1
    assert names(store.snapshots.recent()) == {"a", "b"}


def test_changed_lock_is_shown_at_once(store: Store) -> None:
    """An operator who releases a lock must not see it held; the other locks are not read again."""
    store.snapshots.recent()
    del store.locks["a"]
    store.locks["c"] = held("c")
    store.snapshots.reload(["a", "c"])
    snapshot = store.snapshots.recent()
    assert (names(snapshot), snapshot.counts["held"]) == ({"b", "c"}, 2)
    assert store.readings == 1


def test_reading_that_began_before_a_change_does_not_undo_it(store: Store) -> None:
    store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(store.snapshots.recent)
        wait_until(lambda: store.readings, DEADLINE)
        del store.locks["a"]
        store.now += 0.1
        store.snapshots.reload(["a"])
        store.gate.set()
        assert names(call.result(DEADLINE)) == {"b"}
    store.now += 2.0
    store.locks["a"] = held("a")
    assert names(store.snapshots.recent()) == {"a", "b"}


def test_later_reading_counts() -> None:
    snapshot = Snapshot((held("a", as_of=7.0, worker="new"),), 5.0, 0.0, 0.0)
    [lock] = snapshot.with_updates({"a": held("a", as_of=6.0, worker="old")}).locks
    assert lock.holders[0].worker == "new"


@pytest.mark.parametrize(
    ("lock", "counts"),
    [
        (held("a"), {"held": 1, "waiting": 0, "queued": 0}),
        (held("a", retries=-1), {"held": 0, "waiting": 0, "queued": 1}),
        (LockInfo("a", 1, (), (Holder(),)), {"held": 0, "waiting": 1, "queued": 0}),
        (
            LockInfo("a", 1, (), (Holder(token="kt"),), parked=1),
            {"held": 0, "waiting": 1, "queued": 0, "parked": 1},
        ),
    ],
)
def test_count_states_counts_each_state(lock: LockInfo, counts: object) -> None:
    assert count_states([lock]) == {"paused": 0, "parked": 0, **counts}
