"""What the worker tests of parked tasks share: parking some, and what must hold at the end."""

from __future__ import annotations

from typing import Any

from celery_locks.integration.app_locks import locks_of
from tests.support.celery_worker import PATIENCE, Rig
from tests.support.waiting import wait_until

PARK = {"on_conflict": "park"}
# Parked tasks may need the polls of workers, and a publish that is tried again after 5 s.
LONG = 3 * PATIENCE


def waiters(rig: Rig, key: str) -> int:
    info = rig.locks.info(key)
    return len(info.waiters) if info else 0


def wait_parked(rig: Rig, key: str, count: int) -> None:
    wait_until(lambda: waiters(rig, key) == count, PATIENCE, what=f"{count} parked tasks on {key}")


def park(rig: Rig, key: str, count: int = 1, *, task: str = "work", **options: Any) -> list[Any]:
    """Send tasks to a lock that is busy, one after the other, and wait until each is parked."""
    lock = {**PARK, **options.pop("lock", {})}
    parked, results = waiters(rig, key), []
    for number in range(count):
        results.append(rig.task(task).apply_async((key,), lock=lock, **options))
        wait_parked(rig, key, parked + number + 1)
    return results


def assert_ran_in_order(rig: Rig, key: str, results: list[Any]) -> None:
    """Expect that each has run once, in this order, none beside another, and no trace is left."""
    for result in results:
        assert result.get(timeout=LONG) == key
    ids = [result.id for result in results]
    assert [it["id"] for it in rig.starts() if it["lock"] == key and it["id"] in ids] == ids
    assert_one_at_a_time(rig, key)
    wait_until(lambda: rig.locks.info(key) is None, LONG, what=f"{key} to be free")
    wait_nothing_parked(rig)


def assert_one_at_a_time(rig: Rig, key: str) -> None:
    """As ``rig.never_two_at_once``, for one lock; every run must have ended."""
    runs = [it for it in rig.journal() if it["lock"] == key]
    assert [it["what"] for it in runs] == ["start", "end"] * (len(runs) // 2), runs
    assert all(one["id"] == two["id"] for one, two in zip(runs[::2], runs[1::2], strict=True))


def wait_nothing_parked(rig: Rig, *, forgets_names: bool = False) -> None:
    """Expect no message. A lock without any is forgotten at the next poll, some seconds later."""

    def is_empty() -> bool:
        if any(map(rig.redis.hlen, (f"{root}parked" for root in roots))):
            return False
        due = [member for root in roots for member in rig.redis.zrange(f"{root}due", 0, -1)]
        return not [it for it in due if forgets_names or not it.startswith(b"n")]

    roots = locks_of(rig.app).commands.roots
    wait_until(is_empty, LONG, every=0.05, what="an empty queue")
