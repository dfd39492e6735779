"""A task that has ended leaves nothing to the garbage collector: its arguments may be large."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from celery import Celery

from celery_locks import LockedTask, current_lease
from celery_locks.testing import hold_lock, in_memory_locks
from tests.support.keys import key_alone


class Large:
    """An argument."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("memory", set_as_current=False)
    app.conf.leases = []

    @app.task(name="work", base=LockedTask, lock_key=key_alone, shared=False)
    def work(key: str, large: Large) -> None:
        app.conf.leases.append(weakref.ref(current_lease()))

    @app.task(name="outer", base=LockedTask, lock_key="outer:{key}", shared=False)
    def outer(key: str, large: Large) -> None:
        app.tasks["work"](key, large)

    app.finalize()
    with in_memory_locks(app):
        app.tasks["work"].apply(("first", None))  # fakeredis keeps what met a script it lacks
        app.conf.leases.clear()
        yield app
    app.close()


def here(function: Callable[[], None]) -> None:
    function()


def elsewhere(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("in_thread", [here, elsewhere])
@pytest.mark.parametrize(
    ("task", "held"), [("work", False), ("work", True), ("outer", False)], ids=str
)
def test_arguments_are_gone_with_the_task(
    app: Celery, task: str, held: bool, in_thread: Callable[[Callable[[], None]], None]
) -> None:
    """It ran, was skipped, or called another one directly."""
    left: list[weakref.ref[Large]] = []

    def call() -> None:
        large = Large()
        left.append(weakref.ref(large))
        app.tasks[task].apply(("a", large))

    with hold_lock("a", app=app) if held else nullcontext():
        in_thread(call)
    assert [ref() for ref in left] == [None]
    assert not any(ref() for ref in app.conf.leases)
