"""``notifications.py``, awaited: one connection per event loop and node, read by a task of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from celery_locks.clock import now
from celery_locks.store.async_connection import (
    AsyncConnectionPool,
    close_without_loop,
    disconnect,
    exchange_on,
)
from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.connection import FAILURES
from celery_locks.store.notifications import (
    PING,
    Keepalive,
    SubscriptionHealth,
    token_and_fence,
)
from celery_locks.store.resp import ErrorReply, Reply, pack


class _AsyncWaiter:
    """One waiting task: ``fence`` is what it was handed."""

    __slots__ = ("fence", "wakeup")

    def __init__(self) -> None:
        self.fence = 0
        self.wakeup = asyncio.Event()


class AsyncNotifications:
    """The subscription to one channel on one node, of one event loop."""

    def __init__(self, channel: str, pool: AsyncConnectionPool) -> None:
        self.channel = channel
        self._pool = pool
        self._connection: Any = None
        self._waiters: dict[str, _AsyncWaiter] = {}
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._keepalive = Keepalive()
        self._health = SubscriptionHealth()
        self._failures = 0

    async def expect(self, token: str, *, connect: bool, deadline: float) -> str | None:
        """Keep messages for ``token``; see ``Notifications.expect``."""
        if self._connection is None and not connect:
            return None
        if self._connection is None and not self._health.is_refused:
            await self._connect(deadline)
        if self._connection is None:
            self.unexpect(token)
            return "-"
        self._waiters.setdefault(token, _AsyncWaiter())
        return self.channel

    async def _connect(self, deadline: float) -> None:
        failures = self._failures
        try:
            async with asyncio.timeout(deadline - now()):
                await self._connecting.acquire()
        except TimeoutError:
            return
        try:
            is_needed = self._connection is None and not self._health.is_refused
            if is_needed and self._failures == failures:
                await self._subscribe(deadline)
        except ConnectionFailed:
            self._failures += 1
            raise
        finally:
            self._connecting.release()

    def expects(self, token: str) -> bool:
        return token in self._waiters

    def unexpect(self, token: str) -> None:
        self._waiters.pop(token, None)

    async def _subscribe(self, deadline: float) -> None:
        connection: Any = None
        try:
            async with asyncio.timeout(deadline - now()):
                connection = await self._pool.open(deadline)
                reply = await exchange_on(connection, pack("SUBSCRIBE", self.channel))
        except BaseException as error:
            if connection:
                await disconnect(connection)
            if isinstance(error, FAILURES):
                raise ConnectionFailed(f"cannot subscribe: {error}") from error
            raise
        if isinstance(reply, ErrorReply):
            await disconnect(connection)
            self._health.on_refused(reply)
            return
        self._connection = connection
        self._health.on_subscribed()
        self._keepalive.on_message()
        self._reader = asyncio.create_task(self._read(connection))

    async def _read(self, connection: Any) -> None:
        try:
            while True:
                # Not closed by redis-py: when the loop has ended, it could not.
                self._deliver(
                    await connection.read_response(disable_decoding=True, disconnect_on_error=False)
                )
        except FAILURES:
            self._connection = None
            for waiter in self._waiters.values():
                waiter.wakeup.set()
            await disconnect(connection)

    def _deliver(self, reply: Reply) -> None:
        self._keepalive.on_message()
        token, fence = token_and_fence(reply)
        waiter = self._waiters.get(token)
        if waiter:
            waiter.fence = fence
            waiter.wakeup.set()

    async def wait(self, token: str, seconds: float) -> int:
        """Return the fence that came for ``token``; 0 if the connection breaks or time is over."""
        waiter = self._waiters.get(token)
        if waiter is None:
            return 0
        try:
            async with asyncio.timeout(seconds):
                await waiter.wakeup.wait()
        except TimeoutError:
            await self._keep_alive()
        waiter.wakeup.clear()
        fence, waiter.fence = waiter.fence, 0
        return fence

    async def _keep_alive(self) -> None:
        step = self._keepalive.next_step()
        if step == "ping" and self._connection:
            with suppress(*FAILURES):
                await self._connection.send_packed_command([PING], check_health=False)
        if step == "close":
            await self.close()

    async def close(self) -> None:
        if self._reader:
            self._reader.cancel()
        connection, self._connection = self._connection, None
        if connection:
            await disconnect(connection)

    def close_without_loop(self) -> None:
        """Close after the loop has ended, and the reader with it."""
        if self._reader:
            # Whoever closed the loop could not know of the reader: no complaint.
            self._reader._log_destroy_pending = False  # type: ignore[attr-defined]
        connection, self._connection = self._connection, None
        if connection:
            close_without_loop(connection)
