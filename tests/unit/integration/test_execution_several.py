"""Tasks with several keys: all locks or none."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockConflict, LockedTask, LockUsageError, current_lease, single_instance
from celery_locks.testing import assert_skipped, hold_lock, in_memory_locks


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("several", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(name="pack", shared=False)
    @single_instance(key=["tenant:{tenant}", "warehouse"], limit=[3, 2])
    def pack(tenant: int, more: int = 0) -> Any:
        lease = current_lease()
        assert lease
        if more:
            return app.tasks["pack"](tenant)
        return [list(lease.fences), [holder.also for holder in locks.holders(f"tenant:{tenant}")]]

    @app.task(name="move", base=LockedTask, lock_key=["bin:{a}", "bin:{b}"], shared=False)
    def move(a: int, b: int) -> Any:
        lease = current_lease()
        assert lease
        return list(lease.fences)

    app.finalize()
    with in_memory_locks(app) as locks:
        yield app
    app.close()


def test_task_holds_all_of_its_locks_and_releases_them(app: Celery) -> None:
    names, also = app.tasks["pack"].apply((7,)).get()
    assert names == ["tenant:7", "warehouse"]
    assert also == [("warehouse",)]
    locks: Any = app._celery_locks  # type: ignore[attr-defined]
    assert [locks.info(name) for name in names] == [None, None]


def test_task_is_skipped_for_the_lock_that_is_busy(app: Celery) -> None:
    with hold_lock("warehouse", app=app, limit=2):
        assert_skipped(app.tasks["pack"].apply((7,)), lock="warehouse")
    with hold_lock("tenant:7", app=app, limit=3):
        assert_skipped(app.tasks["pack"].apply((7,)), lock="tenant:7")
        assert app.tasks["pack"].apply((8,)).get()


def test_keys_that_give_one_name_lock_it_once(app: Celery) -> None:
    assert app.tasks["move"].apply((1, 2)).get() == ["bin:1", "bin:2"]
    assert app.tasks["move"].apply((1, 1)).get() == ["bin:1"]


def test_inner_call_is_covered_by_the_locks_of_the_outer_one(app: Celery) -> None:
    assert app.tasks["pack"].apply((7, 1)).get()[0] == ["tenant:7", "warehouse"]


def test_call_may_name_several_keys(app: Celery) -> None:
    move = app.tasks["move"]
    assert move.apply((1, 2), lock={"key": ["x:{a}", "y"]}).get() == ["x:1", "y"]
    with hold_lock("y", app=app):
        result = move.apply((1, 2), lock={"key": ["x:{a}", "y"], "on_conflict": "raise"}).result
        assert isinstance(result, LockConflict)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": []}, "the list of keys is empty"),
        ({"key": ["a", "a"]}, "the key 'a' is there twice"),
        ({"key": ["a", ""]}, "key is ''; write a template"),
        ({"key": ["a", None]}, "write a template"),
        ({"key": ["a", "b:{wrong}"]}, "wrong"),
        ({"key": ["a", "b"], "limit": [1]}, "limit has 1 numbers for 2 locks"),
        ({"key": ["a", "b"], "limit": [1, 0]}, "limit is 0; it must be a whole number"),
        ({"key": "a", "limit": [1, 2]}, "but there is one key"),
        ({"key": ["a", "b"], "scope": "queued"}, "scope with several keys is not possible"),
        ({"key": ["a", "b"], "once": 5}, "once with several keys is not possible"),
        ({"key": ["a", "b"], "debounce": 5}, "with several keys is not possible"),
    ],
)
def test_wrong_keys_are_refused_where_they_are_written(
    app: Celery, options: Any, sentence: str
) -> None:
    def bad(number: int) -> None: ...

    with pytest.raises(LockUsageError, match=sentence):
        app.task(name="bad", shared=False)(single_instance(**options)(bad))
