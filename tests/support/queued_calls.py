"""Calls with a lock from publish time: hold them up in the queue, see what ran and what is left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.celery_worker import PATIENCE, Rig
from tests.support.redis_keys import keys_of_locks
from tests.support.waiting import wait_until

numbers = itertools.count()
NOBODYS = "nobody reads this one"


def left(rig: Rig) -> list[str]:
    return [key for key in keys_of_locks(rig.redis.keys("celery-locks:*")) if "}:e:" not in key]


def wait_nothing_left(rig: Rig) -> None:
    try:
        wait_until(lambda: not left(rig), PATIENCE, what="the last lock to be given back")
    except AssertionError:
        raise AssertionError(f"left behind: {left(rig)}") from None


@contextmanager
def busy(rig: Rig) -> Iterator[None]:
    """Both slots of the worker are taken: what is published now stays queued, in its hands."""
    gate = f"busy-{next(numbers)}"
    blockers = [rig.task("work").delay(f"{gate}-{slot}", gate) for slot in range(2)]
    for blocker in blockers:
        rig.wait_started(blocker)
    try:
        yield
    finally:
        rig.open(gate)
    for blocker in blockers:
        blocker.get(timeout=PATIENCE)


def starts_under(rig: Rig, key: str) -> list[dict[str, Any]]:
    return [entry for entry in rig.starts() if entry["lock"] == key]


def values(rig: Rig, key: str) -> list[Any]:
    return [entry["value"] for entry in starts_under(rig, key)]


def never_two_at_once(rig: Rig, key: str) -> None:
    entries = [entry["what"] for entry in rig.journal() if entry["lock"] == key]
    entries = [what for what in entries if what in ("start", "end")]
    assert entries == ["start", "end"] * (len(entries) // 2)


def hold_running(rig: Rig, key: str) -> Any:
    result = rig.task("sent").delay(key, "first", gate=key)
    rig.wait_started(result)
    return result
