"""Exchanges with one node on redis-py's connections, each bounded by one deadline.

redis-py connects, logs in, sends and reads, through its public methods. Idle connections are kept
here, last in, first out, and no more are open than the user's pool may open.

They are not borrowed from the user's pool: with timeouts of 1 s and a server that sends a byte
every 200 ms, its ``get_connection()`` took 59 s (redis-py 8.1). Only the class around the socket in
``bounded_connection.py`` limits that, and a pool makes its connections without it.

An exchange that fails or is interrupted never puts its connection back: the next user would read
its reply. There is no liveness check before use: every call may be repeated, so a stale connection
costs one retry; a check would cost a round trip for each call.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import redis.exceptions

from celery_locks.clock import now
from celery_locks.store.connect_errors import (
    ConnectionFailed,
    ErrorReply,
    Reply,
    check_version,
    connect_error,
    error_reply,
    reason,
)
from celery_locks.store.connection_config import Address, ServerConfig, describe_address
from celery_locks.store.drivers import FAILURES, TIMEOUTS, Driver
from celery_locks.store.scripts import pack
from celery_locks.unpatched import native_lock

_SERVER_INFO = pack("INFO", "server")
# redis-py closes a connection after these replies.
_CLOSED_AFTER = ("NOAUTH", "WRONGPASS", "LOADING")


class ConnectionPool:
    """The connections of a process or event loop to one node; ``limit`` 0 is any number."""

    def __init__(
        self, driver: Driver, server: ServerConfig, address: Address, limit: int = 0
    ) -> None:
        self.driver = driver
        self._server = server
        self._address = address
        self._limit = limit or math.inf
        self._idle: list[Any] = []
        # Weak: a connection that is lost between pop() and try, by an interruption, does not count.
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count_lock = native_lock()
        self._connection_returned = driver.semaphore(is_free=False)
        self._closed_times = 0

    async def exchange(self, data: bytes, deadline: float) -> Reply:
        """Return the reply, which may be an error reply; raise ``ConnectionFailed`` without one."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = await self._open_or_wait(deadline)
        state, began, closed_times = connection.state, now(), self._closed_times
        state.awaits_reply = True
        try:
            reply = await self.driver.exchange(connection, data, deadline)
        except FAILURES as error:
            found = error_reply(error)
            if found is None:
                await self._discard(connection)
                # The idle ones are most likely dead too; after a timeout, those that have replied
                # since this exchange began are not.
                await self._close_idle(began if isinstance(error, TIMEOUTS) else math.inf)
                where = describe_address(self._address)
                raise ConnectionFailed(f"no answer from {where}: {reason(error)}") from error
            reply = found
        except BaseException:
            await self._discard(connection)
            raise
        if isinstance(reply, ErrorReply) and reply.code in _CLOSED_AFTER:
            await self._discard(connection)
            if reply.code != "NOAUTH" or not state.answered_at:
                return reply
            # Credentials may have been rotated since an idle connection logged in.
            await self._close_idle()
            return await self.exchange(data, deadline)
        if self._closed_times == closed_times:
            self._put_back(connection)
        else:
            await self._discard(connection)
        return reply

    def _put_back(self, connection: Any) -> None:
        connection.state.awaits_reply, connection.state.answered_at = False, now()
        self._idle.append(connection)
        if self._limit < math.inf:  # else nobody waits for it
            self.driver.release(self._connection_returned)

    async def _open_or_wait(self, deadline: float) -> Any:
        """Open a connection; at the limit wait for one that is put back."""
        while True:
            connection = self._new_connection(deadline)
            if connection is not None:
                return await self._connect(connection, deadline)
            # Wait 50 ms at most: a connection that is discarded does not wake us.
            await self.driver.acquire(self._connection_returned, min(deadline, now() + 0.05))
            try:
                connection = self._idle.pop()
            except IndexError:  # another caller was faster
                if now() < deadline:
                    continue
                where = describe_address(self._address)
                raise ConnectionFailed(
                    f"all connections to {where} that max_connections permits are in use"
                ) from None
            if self._idle:  # two were put back before this caller woke: it wakes the next one
                self.driver.release(self._connection_returned)
            return connection

    def _new_connection(self, deadline: float) -> Any:
        """Make an unconnected connection; None at the limit."""
        if len(self._open) >= self._limit:
            return None
        # Not under the lock: the user's class may switch greenlets.
        connection = self.driver.new_connection(self._server, self._address, deadline)
        with self._count_lock:
            if len(self._open) >= self._limit:
                return None
            self._open.add(connection)
        return connection

    async def open_for_subscription(self, deadline: float) -> Any:
        """Open a connection that does not count and is not kept."""
        connection = self.driver.new_connection(self._server, self._address, deadline)
        return await self._connect(connection, deadline)

    async def _connect(self, connection: Any, deadline: float) -> Any:
        """Connect and log in; check once that the server is new enough."""
        try:
            await self.driver.connect(connection, deadline)
            if self._address not in self._server.checked:
                # A server that forbids INFO, or has none (fakeredis), counts as new enough.
                with suppress(redis.exceptions.ResponseError):
                    info = await self.driver.exchange(connection, _SERVER_INFO, deadline)
                    check_version(self._address, info)
                self._server.checked.add(self._address)
        except FAILURES as error:
            await self._discard(connection)
            raise connect_error(self._server, self._address, error) from error
        except BaseException:
            await self._discard(connection)
            raise
        return connection

    async def _discard(self, connection: Any) -> None:
        self._open.discard(connection)
        await self.driver.disconnect(connection)

    async def close(self) -> None:
        """Close the connections: the idle ones, and those in use when their exchange ends."""
        self._closed_times += 1
        await self._close_idle()

    async def _close_idle(self, answered_before: float = math.inf) -> None:
        """Close the idle connections, or those that had their last reply before that time."""
        for connection in self._idle[:]:
            if connection.state.answered_at <= answered_before and self._take(connection):
                await self._discard(connection)

    def _take(self, connection: Any) -> bool:
        """Take an idle connection; False if another caller has taken it."""
        try:
            self._idle.remove(connection)
        except ValueError:
            return False
        return True


class ConnectionPools:
    """The pools of a process or event loop, by node."""

    def __init__(self, driver: Driver, server: ServerConfig) -> None:
        self._driver = driver
        self._server = server
        # One connection is left for the subscription and one for the renewing thread.
        self._limit = max(1, server.max_connections - 2) if server.max_connections else 0
        self._pools: dict[Address, ConnectionPool] = {}

    def pool(self, address: Address) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            new = ConnectionPool(self._driver, self._server, address, self._limit)
            pool = self._pools.setdefault(address, new)  # another thread may have been faster
        return pool

    def exchange(self, address: Address, data: bytes, deadline: float) -> Awaitable[Reply]:
        return self.pool(address).exchange(data, deadline)

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            await pool.close()
