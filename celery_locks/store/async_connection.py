"""The awaited version of ``connection.py``, whose docstring holds here too.

asyncio bounds an exchange as a whole, so redis-py's connection classes are used as they are.

A connection whose event loop has ended can no longer be closed through redis-py or asyncio: both
need the loop. Only for that case, ``close_without_loop`` reaches for attributes that redis-py
(``_writer``; seen in 5.0 to 8.1) and asyncio (``_sock``) do not promise. Without them the socket is
closed a little later, by the garbage collector and with a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import redis.exceptions

from celery_locks.clock import now
from celery_locks.store.connect_errors import ConnectionFailed, check_version, connect_error
from celery_locks.store.connection import (
    FAILURES,
    SERVER_INFO,
    connection_survives,
    reset_at_fork,
)
from celery_locks.store.resp import ErrorReply, Reply, error_reply
from celery_locks.store.server_config import Address, ServerConfig, describe_address

T = TypeVar("T")

# A connection that is freed in a forked child would remove itself from the parent's epoll.
_left_to_parent: list[Any] = []


def leave_to_parent(connections: Any) -> None:
    _left_to_parent.append(connections)


async def exchange_on(connection: Any, data: bytes) -> Reply:
    """Send and read one reply; an error reply is a value, everything else that fails is raised."""
    connection.deadline.awaits_reply = True
    await connection.send_packed_command([data], check_health=False)
    try:
        reply: Reply = await connection.read_response(disable_decoding=True)
    except redis.exceptions.RedisError as error:
        found = error_reply(error)
        if found is None:
            raise
        reply = found
    connection.deadline.awaits_reply = False
    return reply


async def disconnect(connection: Any) -> None:
    """Close without waiting for the other end; a connection that is closed already is fine."""
    with suppress(*FAILURES):
        await connection.disconnect(nowait=True)


def close_without_loop(connection: Any) -> None:
    """Close a connection whose event loop has ended."""
    writer = getattr(connection, "_writer", None)
    connection._reader = connection._writer = None
    transport = getattr(writer, "transport", None)
    if transport is None:
        return
    with suppress(RuntimeError):  # it is marked as closed before it needs its loop
        transport.abort()
    tls = getattr(transport, "_ssl_protocol", None)
    transport = tls._transport if tls else transport
    sock = getattr(transport, "_sock", None)
    if sock:
        sock.close()
        transport._sock = None


def of_this_loop(
    by_loop: dict[asyncio.AbstractEventLoop, T], new: Callable[[], T], close: Callable[[T], None]
) -> T:
    """Return what belongs to the running loop; for a new loop, close what ended loops had.

    A connection holds its loop, so nothing that holds the connection would be freed by itself.
    """
    loop = asyncio.get_running_loop()
    found = by_loop.get(loop)
    if found is None:
        for other in list(by_loop):  # loops of other threads add to it
            if other.is_closed() and (ended := by_loop.pop(other, None)) is not None:
                close(ended)
        found = by_loop[loop] = new()
    return found


class _LoopConnections:
    """The connections of one event loop: those that are idle, and how many more may be open."""

    def __init__(self, limit: int) -> None:
        self.idle: list[Any] = []
        self.slots = asyncio.Semaphore(limit) if limit else None


def _close_all(connections: _LoopConnections) -> None:
    for connection in connections.idle:
        close_without_loop(connection)


class AsyncConnectionPool:
    """All connections of this process to one node; each event loop has its own, and its limit."""

    def __init__(self, server: ServerConfig, address: Address, limit: int = 0) -> None:
        self._server = server
        self._address = address
        self._limit = limit
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}
        reset_at_fork(self)

    def after_fork(self) -> None:
        leave_to_parent(self._by_loop)
        self._by_loop = {}

    @property
    def _connections(self) -> _LoopConnections:
        return of_this_loop(self._by_loop, lambda: _LoopConnections(self._limit), _close_all)

    async def exchange(self, data: bytes, deadline: float) -> Reply:
        """Send and read one reply; raise ``ConnectionFailed`` if that fails by the deadline."""
        connections = self._connections
        try:
            async with asyncio.timeout(deadline - now()):
                if connections.slots is None:
                    return await self._exchange(connections.idle, data, deadline)
                async with connections.slots:
                    return await self._exchange(connections.idle, data, deadline)
        except FAILURES as error:
            where = describe_address(self._address)
            raise ConnectionFailed(f"no answer from {where}: {error}") from error

    async def _exchange(self, idle: list[Any], data: bytes, deadline: float) -> Reply:
        is_new = not idle
        connection = await self.open(deadline) if is_new else idle.pop()
        began = now()
        try:
            reply = await exchange_on(connection, data)
        except BaseException as error:
            await disconnect(connection)
            await self._discard_suspects(idle, began, error)
            raise
        if isinstance(reply, ErrorReply) and not connection_survives(reply):
            await disconnect(connection)
            if is_new or reply.code != "NOAUTH":
                return reply
            # Credentials may have been rotated since an idle connection logged in.
            await self.close()
            return await self._exchange(idle, data, deadline)
        connection.deadline.answered_at = now()
        idle.append(connection)
        return reply

    async def _discard_suspects(self, idle: list[Any], began: float, error: BaseException) -> None:
        """Close the idle connections that are most likely dead too.

        After a timeout these are only those that have not been answered since it began; a task
        that is cancelled says nothing about the others, unless its time is over.
        """
        if isinstance(error, asyncio.CancelledError):
            suspects = [c for c in idle if c.deadline.answered_at <= began]
        else:
            suspects = idle[:]
        for connection in suspects:
            if connection in idle:
                idle.remove(connection)
                await disconnect(connection)

    async def open(self, deadline: float) -> Any:
        """Connect and log in; check once that the server is new enough."""
        connection = self._server.connection(self._address, None, asyncio=True)
        try:
            await connection.connect()
            if self._address not in self._server.checked:
                check_version(
                    self._server, self._address, await exchange_on(connection, SERVER_INFO)
                )
                self._server.checked.add(self._address)
        except BaseException as error:
            await disconnect(connection)
            if isinstance(error, FAILURES):
                raise connect_error(self._server, self._address, error) from error
            raise
        return connection

    async def close(self) -> None:
        idle = self._connections.idle
        while idle:
            await disconnect(idle.pop())
