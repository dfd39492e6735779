"""The time limit of an asyncio connection, whose timer outlives the exchanges."""

import asyncio
from collections.abc import Callable

import pytest

from celery_locks.clock import now
from celery_locks.store.drivers import TimeLimit


async def use(limit: TimeLimit, deadline: float, seconds: float = 30.0) -> None:
    """Wait as for a reply, and pass on whatever ends it, as redis-py does."""
    with limit(deadline):
        await asyncio.sleep(seconds)


async def test_limit_raises_at_the_deadline_and_not_before() -> None:
    """A server that does not reply must not hold the caller."""
    deadline = now() + 0.05
    with pytest.raises(TimeoutError):
        await use(TimeLimit(), deadline)
    assert now() >= deadline
    current = asyncio.current_task()
    assert current
    assert not current.cancelling()


@pytest.mark.parametrize("first", [0.02, 600.0])
async def test_limit_follows_the_deadline_of_each_use(first: float) -> None:
    """The timer was set for the use before, whose deadline was earlier or later."""
    limit = TimeLimit()
    await use(limit, now() + first, seconds=0)
    deadline = now() + 0.1
    with pytest.raises(TimeoutError):
        await use(limit, deadline)
    assert now() >= deadline


async def test_limit_past_its_deadline_ends_at_once() -> None:
    with pytest.raises(TimeoutError):
        await use(TimeLimit(), now() - 1)


async def test_limit_of_a_past_use_cancels_nobody() -> None:
    """The timer fires when the connection is idle, and the task does other work."""
    limit = TimeLimit()
    await use(limit, now() + 0.02, seconds=0)
    await asyncio.sleep(0.1)
    await use(limit, now() + 600, seconds=0)


async def test_many_uses_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is not asyncio.timeout."""
    loop = asyncio.get_running_loop()
    timers: list[float] = []

    def count(when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        timers.append(when)
        return call_later(when, callback, *args)

    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", count)
    limit = TimeLimit()
    for _ in range(50):
        with limit(now() + 600):
            pass
    assert len(timers) == 1


async def test_task_that_is_cancelled_at_its_deadline_stays_cancelled() -> None:
    """Else the caller's own cancellation would be lost."""
    task = asyncio.ensure_future(use(TimeLimit(), now() - 1))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limit_holds_in_the_clean_up_of_a_cancelled_task() -> None:
    """It releases a lock then: a time-out there is one of the server, not of the task."""

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            with pytest.raises(TimeoutError):
                await use(TimeLimit(), now() + 0.02)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
