"""Tasks that share their lock: readers beside readers, and never beside a writer."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockConflict, LockedTask, LockUsageError, current_lease, single_instance
from celery_locks.testing import assert_skipped, in_memory_locks


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shared", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(name="read", base=LockedTask, lock_key="doc:{n}", lock_shared=True, shared=False)
    def read(n: int, then: str = "") -> Any:
        lease = current_lease()
        assert lease
        return app.tasks[then](n) if then else lease.shared

    @app.task(name="write", shared=False)
    @single_instance(key="doc:{n}", on_conflict="raise")
    def write(n: int, then: str = "") -> Any:
        lease = current_lease()
        assert lease
        return app.tasks[then](n) if then else lease.shared

    app.finalize()
    with in_memory_locks(app):
        yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Any:
    return app._celery_locks  # type: ignore[attr-defined]


def test_readers_run_beside_readers_and_not_beside_a_writer(app: Celery, locks: Any) -> None:
    read, write = app.tasks["read"], app.tasks["write"]
    with locks.hold("doc:7", shared=True):
        assert read.apply((7,)).get() is True
        assert isinstance(write.apply((7,)).result, LockConflict)
    with locks.hold("doc:7"):
        assert_skipped(read.apply((7,)), lock="doc:7")
    assert write.apply((7,)).get() is False


def test_call_may_be_shared_and_a_shared_task_called_alone(app: Celery, locks: Any) -> None:
    read, write = app.tasks["read"], app.tasks["write"]
    with locks.hold("doc:7", shared=True):
        assert write.apply((7,), lock={"shared": True}).get() is True
        assert_skipped(read.apply((7,), lock={"shared": False}), lock="doc:7")
        assert_skipped(read.apply((7,), lock={"limit": 5}), lock="doc:7")


def test_task_covers_its_own_inner_call(app: Celery) -> None:
    assert app.tasks["write"].apply((7, "write")).get() is False
    assert app.tasks["read"].apply((7, "read")).get() is True


def test_reader_that_calls_a_writer_conflicts_with_itself(app: Celery) -> None:
    """Not covered by the shared lock: others read meanwhile."""
    error = app.tasks["read"].apply((7, "write")).result
    assert isinstance(error, LockConflict)
    assert "The caller itself shares it" in str(error)


@pytest.mark.parametrize(
    "options", [{"limit": 2}, {"once": 60}, {"scope": "queued+running", "key": "k"}]
)
def test_shared_is_refused_with_what_contradicts_it(app: Celery, options: Any) -> None:
    def bad() -> None: ...

    with pytest.raises(LockUsageError, match="shared"):
        app.task(name="bad", shared=False)(single_instance(shared=True, **options)(bad))


def test_shared_tasks_may_be_unique_in_the_queue(app: Celery) -> None:
    """The reservation is a lock of its own, which is not shared."""

    @app.task(name="index", shared=False)
    @single_instance(key="index:{n}", scope="queued", shared=True)
    def index(n: int) -> None: ...

    first, second = app.tasks["index"].delay(1), app.tasks["index"].delay(1)
    assert (first.deduplicated, second.deduplicated) == (False, True)
