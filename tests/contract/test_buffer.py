"""Buffers where something is wrong: similar names, the wrong API, no server."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import AsyncLocks, Locks, LockUnavailable, LockUsageError
from celery_locks.recipes import AsyncBuffer, Buffer
from tests.contract.backends import Backend, in_loop, make_backend
from tests.support.waiting import wait_until


def absorbed(buffer: Buffer, user: str) -> list[Any]:
    got: list[Any] = []
    buffer.absorb(user, got.extend)
    return got


class Struck(BaseException):
    """Raised as a time limit or Ctrl-C would be."""


def gone() -> LockUnavailable:
    return LockUnavailable("no answer")


def away(locks: Locks | AsyncLocks, **errors: Callable[[], BaseException]) -> None:
    """Make these commands fail from now on."""
    store: Any = locks._store
    perform = store.perform

    def performed(effect: Any) -> Any:
        error = errors.get(getattr(getattr(effect, "script", None), "name", ""))
        if error:
            raise error()
        return perform(effect)

    store.perform = performed


def test_buffers_whose_names_look_alike_share_nothing(locks: Locks) -> None:
    """One would absorb the messages of the other, whose users would stay counted forever."""
    pairs = [("mem", "x:ann"), ("mem:x", "ann"), ("mem%3Ax", "ann"), ("mem%3A", "x:ann")]
    for name, user in pairs:
        Buffer(locks, name).push(user, name)
    for name, user in pairs:
        buffer = Buffer(locks, name)
        assert buffer.users() == {user: 1}
        assert absorbed(buffer, user) == [name]
        assert buffer.users() == {}


def test_buffer_lock_name_is_the_plain_one_where_it_can_be() -> None:
    """Messages that an earlier version stored must be found."""
    locks = Locks.from_url("redis://nowhere")
    assert Buffer(locks, "memory").lock_name("ann:1%") == "memory:ann:1%"


def test_buffer_refuses_what_no_lock_can_be_named() -> None:
    """A message that is pushed but can never be absorbed would be lost."""
    backend = make_backend("fakeredis", lambda _: None)
    buffer = Buffer(backend.locks(), "n" * 300)
    with pytest.raises(LockUsageError, match="601 bytes long; 512 is the most"):
        buffer.push("u" * 300, 1)
    assert backend.keys() == set()
    backend.close()


def test_buffer_wants_the_face_that_fits() -> None:
    blocking, awaited = Locks.from_url("redis://nowhere"), AsyncLocks.from_url("redis://nowhere")
    with pytest.raises(LockUsageError, match="use AsyncBuffer"):
        Buffer(awaited, "memory")  # type: ignore[arg-type]
    with pytest.raises(LockUsageError, match="use Buffer"):
        AsyncBuffer(blocking, "memory")  # type: ignore[arg-type]
    with pytest.raises(LockUsageError, match="needs Locks, not None"):
        Buffer(None, "memory")  # type: ignore[arg-type]


def test_buffer_that_blocks_refuses_a_coroutine() -> None:
    """Nobody would await it."""

    async def ready(user: str) -> None: ...

    with pytest.raises(LockUsageError, match="on_ready is a coroutine"):
        Buffer(Locks.from_url("redis://nowhere"), "memory", on_ready=ready)


def test_buffer_awaits_on_ready(backend: Backend) -> None:
    """If it is never awaited, nobody learns that there is work."""
    describe_entry: list[str] = []

    async def ready(user: str) -> None:
        await asyncio.sleep(0)
        describe_entry.append(user)

    async def test(locks: AsyncLocks) -> None:
        await AsyncBuffer(locks, "memory", threshold=2, on_ready=ready).push("ann", 1)
        assert describe_entry == []
        await AsyncBuffer(locks, "memory", threshold=2, on_ready=ready).push("ann", 2)
        await AsyncBuffer(locks, "memory", threshold=2, on_ready=describe_entry.append).push(
            "ann", 3
        )
        assert describe_entry == ["ann", "ann"]

    in_loop(backend, test)


def test_buffer_work_that_failed_says_so_though_the_server_is_away(
    locks: Locks, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of the work is raised, and the batch comes back after the pending release."""
    buffer, other = Buffer(locks, "memory"), Buffer(backend.locks(), "memory")
    buffer.push("ann", 1)

    def work(messages: list[Any]) -> None:
        away(locks, end_batch=gone, release=gone)
        raise OSError("the work failed")

    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match="the work failed"):
        buffer.absorb("ann", work)
    [line] = [line for line in caplog.records if getattr(line, "event", "") == "release_deferred"]
    assert line.getMessage() == "lock 'memory:ann' is released as soon as possible: no answer"
    assert wait_until(lambda: absorbed(other, "ann"), what="the batch to come back") == [1]


def test_buffer_awaited_work_is_cancelled_though_the_server_is_away(backend: Backend) -> None:
    """A cancelled task must end as cancelled, or its canceller waits forever."""
    other = Buffer(backend.locks(), "memory")

    async def test(locks: AsyncLocks) -> None:
        buffer, started = AsyncBuffer(locks, "memory"), asyncio.Event()
        await buffer.push("ann", 1)

        async def work(messages: list[Any]) -> None:
            away(locks, end_batch=gone, release=gone)
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(buffer.absorb("ann", work))
        await asyncio.wait_for(started.wait(), 15)
        task.cancel()
        await asyncio.wait([task], timeout=15)
        assert task.cancelled()

    in_loop(backend, test)
    assert wait_until(lambda: absorbed(other, "ann"), what="the batch to come back") == [1]


def test_buffer_that_is_interrupted_while_it_takes_goes_on_so(
    locks: Locks, backend: Backend
) -> None:
    buffer, other = Buffer(locks, "memory"), Buffer(backend.locks(), "memory")
    buffer.push("ann", 1)
    away(locks, take_batch=Struck, release=gone)
    with pytest.raises(Struck):
        absorbed(buffer, "ann")
    assert wait_until(lambda: absorbed(other, "ann"), what="the release") == [1]


def test_buffer_says_that_work_could_not_be_ended(locks: Locks, backend: Backend) -> None:
    """The work ran, but the batch comes again: that is no success."""
    buffer, other = Buffer(locks, "memory"), Buffer(backend.locks(), "memory")
    buffer.push("ann", 1)
    away(locks, end_batch=gone, release=gone)
    with pytest.raises(LockUnavailable):
        absorbed(buffer, "ann")
    assert wait_until(lambda: absorbed(other, "ann"), what="the batch to come back") == [1]
