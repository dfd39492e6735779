"""Which lock a real worker takes: every placement, kind of task and kind of call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chord, group
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from celery_locks import LockConflict
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=4) as rig, rig.worker():
        yield rig


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


@pytest.mark.parametrize(
    "task",
    [
        "below_locked",
        "below_plain",
        "above_locked",
        "above_plain",
        "bound",
        "auto_below",
        "class_based",
        "plain_class",
        "shared_below",
        "shared_locked",
    ],
)
def test_every_kind_of_task_takes_its_lock(rig: Rig, task: str) -> None:
    """Positional or by name, it is the lock that the key says."""
    assert rig.task(task).delay(1).get(timeout=PATIENCE) == f"{task}:1"
    assert rig.task(task).delay(n=1).get(timeout=PATIENCE) == f"{task}:1"


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "lock"),
    [
        ("bare", (1,), {}, "bare(n=1,and_=2)"),
        ("bare", (), {"and_": 2, "n": 1}, "bare(n=1,and_=2)"),
        ("bare_above", (1,), {}, "bare_above(n=1)"),
        ("callable_", (1,), {"other": 5}, "callable:1"),
    ],
)
def test_keys_are_made_of_arguments(rig: Rig, task: str, args: Any, kwargs: Any, lock: str) -> None:
    assert rig.task(task).apply_async(args, kwargs).get(timeout=PATIENCE) == lock


def test_a_pydantic_task_is_locked_by_what_came(rig: Rig) -> None:
    """The key sees the message's plain values; the body sees the model."""
    answer = rig.task("ordered").delay({"id": 3}).get(timeout=PATIENCE)
    assert answer == {"id": 3, "lock": "order:3"}


def test_without_a_key_the_lock_is_the_messages_own(rig: Rig) -> None:
    result = rig.task("by_id").delay()
    assert result.get(timeout=PATIENCE) == f"by_id[{result.id}]"


def test_a_disabled_lock_is_none(rig: Rig) -> None:
    """``lock_enabled=False``; and the same for one call."""
    assert rig.task("open").delay().get(timeout=PATIENCE) == [False, 0, None]
    result = rig.task("below_locked").apply_async([1], lock={"enabled": False})
    assert result.get(timeout=PATIENCE) is None


def test_a_task_that_changes_its_argument_releases_its_own_lock(rig: Rig, key: str) -> None:
    """The name is made once, of the arguments as they came."""
    mutates = rig.task("mutates")
    first = mutates.delay([key], gate=key)
    lock = rig.wait_started(first)["lock"]
    second = mutates.apply_async([[key]], {"gate": key}, lock={"on_conflict": "raise"})
    with pytest.raises(LockConflict):
        second.get(timeout=PATIENCE)
    rig.open(key)
    assert first.get(timeout=PATIENCE) == [key, "more"]
    assert rig.locks.holders(lock) == ()
    assert mutates.delay([key], gate=key).get(timeout=PATIENCE) == [key, "more"]


def test_map_starmap_and_chunks_lock_each_item(rig: Rig) -> None:
    """They call the task directly, item by item."""
    task = rig.task("below_locked")
    names = ["below_locked:1", "below_locked:2"]
    assert task.map([1, 2]).apply_async().get(timeout=PATIENCE) == names
    assert task.starmap([(1,), (2,)]).apply_async().get(timeout=PATIENCE) == names
    chunked = task.chunks([(1,), (2,)], 1).apply_async().get(timeout=PATIENCE)
    assert chunked == [[name] for name in names]


def test_one_call_may_say_otherwise(rig: Rig, key: str) -> None:
    """``apply_async(lock=…)``, ``signature.set(lock=…)`` and the options of a beat entry."""
    task = rig.task("below_locked")
    lock = {"key": key + ":{n}", "ttl": 9}
    assert task.apply_async([1], lock=lock).get(timeout=PATIENCE) == f"{key}:1"
    assert task.s(2).set(lock=lock).apply_async().get(timeout=PATIENCE) == f"{key}:2"
    entry = ScheduleEntry(
        name="entry",
        task="below_locked",
        args=(3,),
        schedule=schedule(60),
        options={"lock": lock},
        app=rig.app,
    )
    scheduler = Scheduler(rig.app, lazy=True)
    assert scheduler.apply_async(entry, advance=False).get(timeout=PATIENCE) == f"{key}:3"


def test_a_call_by_name_has_the_tasks_own_lock(rig: Rig) -> None:
    """``send_task`` knows nothing of the task; the worker does."""
    assert rig.app.send_task("below_locked", [4]).get(timeout=PATIENCE) == "below_locked:4"


def test_settings_are_the_tasks_defaults(rig: Rig, key: str) -> None:
    """``locks_ttl`` of the app, unless the task or the call says otherwise."""
    for options, ttl in (({}, 4), ({"ttl": 6}, 6)):
        result = rig.task("work").apply_async([key, f"{key}-{ttl}"], lock=options)
        rig.wait_started(result)
        assert [holder.ttl for holder in rig.locks.holders(key)] == [ttl]
        rig.open(f"{key}-{ttl}")
        assert result.get(timeout=PATIENCE) == key


def test_the_default_base_and_django_settings() -> None:
    """``task_cls`` locks every task by its id; canvas and Celery's own tasks go on as ever."""
    conf = {
        "celery": {"task_cls": "celery_locks:LockedTask"},
        "django": {"CELERY_LOCKS_TTL": 7, "CELERY_LOCKS_PREFIX": "shop"},
        "locks_ttl": None,
    }
    with fresh_rig(**conf) as rig, rig.worker(pool="threads"):
        result = rig.task("seen").delay()
        assert result.get(timeout=PATIENCE) == [f"seen[{result.id}]", 7]
        together = group(rig.task("echo").s(n) for n in range(3))
        assert together.apply_async().get(timeout=PATIENCE) == [0, 1, 2]
        both = chord(together, app=rig.app)(rig.task("gather").s())
        assert both.get(timeout=PATIENCE) == [0, 1, 2]
        assert rig.redis.keys("shop:*")
