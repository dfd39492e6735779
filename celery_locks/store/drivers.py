"""How the store blocks, and how it awaits: the only difference between its two versions.

Everything above is written once, as coroutines that await a driver. Those of ``BlockingDriver``
never suspend, so ``run_blocking`` runs such a coroutine to its end like an ordinary function.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

import redis.exceptions

from celery_locks.clock import now
from celery_locks.store.bounded_connection import close_without_loop
from celery_locks.store.connect_errors import Reply
from celery_locks.store.connection_config import Address, ServerConfig

T = TypeVar("T")

FAILURES = (redis.exceptions.RedisError, OSError, ValueError)
TIMEOUTS = (redis.exceptions.TimeoutError, TimeoutError)


def run_blocking(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run a coroutine function whose driver blocks."""
    try:
        function(*args).send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError(f"{function} awaits something that is not a blocking driver")


class BlockingDriver:
    """Blocks the thread; the greenlet if ``new_lock`` is what gevent or eventlet has patched."""

    def __init__(self, new_lock: Callable[[], Any] | None = None) -> None:
        self._new_lock = new_lock

    def new_connection(self, server: ServerConfig, address: Address, deadline: float) -> Any:
        return server.connection(address, max(0.001, (deadline - now()) / 3))

    async def connect(self, connection: Any, deadline: float) -> None:
        connection.state.deadline = deadline
        connection.connect()

    async def send(self, connection: Any, data: bytes, deadline: float) -> None:
        connection.state.deadline = deadline
        connection.send_packed_command([data], check_health=False)

    async def read(self, connection: Any, deadline: float) -> Reply:
        connection.state.deadline = deadline
        reply: Reply = connection.read_response(**_OF_A_SUBSCRIPTION)
        return reply

    async def exchange(self, connection: Any, data: bytes, deadline: float) -> Reply:
        connection.state.deadline = deadline
        connection.send_packed_command([data], check_health=False)
        reply: Reply = connection.read_response(disable_decoding=True)
        return reply

    async def disconnect(self, connection: Any) -> None:
        connection.disconnect()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def semaphore(self, is_free: bool) -> Any:
        lock = self._new_lock() if self._new_lock else threading.Lock()
        if not is_free:
            lock.acquire()
        return lock

    async def acquire(self, semaphore: Any, deadline: float) -> bool:
        left = deadline - now()
        acquired: bool = semaphore.acquire(left > 0, left if left > 0 else -1)
        return acquired

    def release(self, semaphore: Any) -> None:
        if semaphore.locked():
            with suppress(RuntimeError):  # another thread was faster
                semaphore.release()


class TimeLimit:
    """Ends what a task does on one connection when the deadline passes, with ``TimeoutError``.

    ``asyncio.timeout`` does the same, with a timer for each use: a seventh of the work of an
    acquire and a release. The timer here stays; when it fires, it looks at the deadline of then.
    """

    __slots__ = ("_cancelling", "_deadline", "_fires_at", "_has_passed", "_task", "_timer")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf
        self._task: Any = None  # None while nobody uses the connection

    def __call__(self, deadline: float) -> Self:
        self._deadline = deadline
        return self

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task
        self._cancelling, self._has_passed = task.cancelling(), False
        if self._deadline < self._fires_at:
            self._set_timer()

    def __exit__(self, kind: type[BaseException] | None, error: Any, _: Any) -> None:
        task, self._task = self._task, None
        # If others have cancelled the task too, it stays cancelled.
        is_ours = self._has_passed and task.uncancel() <= self._cancelling
        if is_ours and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._fires_at = self._deadline
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._deadline - now(), self._on_timer)

    def _on_timer(self) -> None:
        self._fires_at = math.inf
        if self._task is None or self._has_passed:
            return
        if now() < self._deadline:
            self._set_timer()
        else:
            self._has_passed = True
            self._task.cancel()


class AsyncDriver:
    """Awaits in one event loop."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    def new_connection(self, server: ServerConfig, address: Address, deadline: float) -> Any:
        connection = server.connection(address, None, asyncio=True)
        connection.time_limit = TimeLimit()
        self._connections.add(connection)
        return connection

    def close_without_loop(self) -> None:
        """Close the connections after the event loop has ended."""
        for connection in list(self._connections):
            close_without_loop(connection)

    async def connect(self, connection: Any, deadline: float) -> None:
        with connection.time_limit(deadline):
            await connection.connect()

    async def send(self, connection: Any, data: bytes, deadline: float) -> None:
        with connection.time_limit(deadline):
            await connection.send_packed_command([data], check_health=False)

    async def read(self, connection: Any, deadline: float) -> Reply:
        with connection.time_limit(deadline):
            reply: Reply = await connection.read_response(**_OF_A_SUBSCRIPTION)
            return reply

    async def exchange(self, connection: Any, data: bytes, deadline: float) -> Reply:
        with connection.time_limit(deadline):
            await connection.send_packed_command([data], check_health=False)
            reply: Reply = await connection.read_response(disable_decoding=True)
            return reply

    async def disconnect(self, connection: Any) -> None:
        with suppress(*FAILURES):  # closed already
            await connection.disconnect(nowait=True)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def semaphore(self, is_free: bool) -> Any:
        return asyncio.Semaphore(int(is_free))

    async def acquire(self, semaphore: Any, deadline: float) -> bool:
        if not semaphore.locked():
            acquired: bool = await semaphore.acquire()
            return acquired
        if now() >= deadline:
            return False
        try:
            async with asyncio.timeout(deadline - now()):
                await semaphore.acquire()
                return True
        except TimeoutError:
            return False

    def release(self, semaphore: Any) -> None:
        if semaphore.locked():
            semaphore.release()


# After a timeout the connection stays open, and the part of a message that has come is kept.
_OF_A_SUBSCRIPTION = {"disable_decoding": True, "disconnect_on_error": False, "push_request": True}


Driver = BlockingDriver | AsyncDriver
