"""To which thread, greenlet or asyncio task a hold belongs."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import fakeredis
import pytest

from celery_locks import Locks, LockUnavailable
from celery_locks.core.owners import blocked_owners, current_holder, current_owner, set_task_lookup
from celery_locks.types import Holder
from tests.support.waiting import wait_until


@pytest.fixture
def locks() -> Any:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


def in_thread(function: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def test_owner_is_of_a_thread() -> None:
    """Another thread may release what this one waits for."""
    assert current_owner() is current_owner()
    assert in_thread(current_owner) is not current_owner()


def test_owner_is_of_an_asyncio_task() -> None:
    async def main() -> None:
        async def child() -> Any:
            return current_owner()

        children = await asyncio.gather(child(), child())
        assert len({owner.id for owner in (current_owner(), *children, outside)}) == 4
        assert (await child()) is current_owner()

    outside = current_owner()
    asyncio.run(main())


def test_block_that_another_thread_ends_is_no_deadlock(locks: Locks) -> None:
    """A web framework enters it in one job of a thread pool and leaves it in another."""
    hold = locks.hold("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, hold.__enter__).result()
        waiting = pool.submit(copy_context().run, lambda: locks.acquire("a", wait=30))
        wait_until(lambda: (info := locks.info("a")) and info.waiters, what="the next job to wait")
        in_thread(lambda: hold.__exit__(None, None, None))
        assert waiting.result()


def test_event_loop_blocks_the_task_that_runs_it(locks: Locks) -> None:
    """The body of a Celery task ends when its loop does; a server's loop serves others extras."""

    async def blocked() -> list[Any]:
        return blocked_owners()

    with locks.hold("a"):
        assert asyncio.run(blocked()) == []
        set_task_lookup(lambda: Holder(task_id="t", nested=True))
        try:
            assert asyncio.run(blocked()) == [current_owner()]
        finally:
            from celery_locks.integration.current_execution import current_task_holder

            set_task_lookup(current_task_holder)


def test_lease_leaves_its_owner_when_it_is_released(locks: Locks) -> None:
    with locks.hold("a") as lease:
        assert current_owner().leases == {lease.token: lease}
    assert current_owner().leases == {}
    assert locks.acquire("b")
    assert current_owner().leases == {}


def test_release_that_is_left_to_the_keeper_changes_the_owners_id(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the server hears of it, the store shows a hold that nobody has."""
    before = current_owner().id
    with locks.hold("a"):
        perform = locks._store.perform

        def fail(effect: Any) -> Any:
            raise LockUnavailable("as planned")

        monkeypatch.setattr(locks._store, "perform", fail)
    monkeypatch.setattr(locks._store, "perform", perform)
    assert current_owner().id != before
    assert current_holder(current_owner()).owner == current_owner().id
    assert current_owner().leases == {}
