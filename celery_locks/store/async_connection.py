"""The awaited half of ``wire.py``, whose docstring holds here too.

asyncio does not promise the ``_sock`` of a transport, which is asked for when its loop has ended;
without it, the socket is closed a little later and with a warning.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import redis.exceptions

from celery_locks.clock import now
from celery_locks.store.connect_errors import (
    ConnectionFailed,
    check_handshake,
    check_version,
    place_of,
    refusal,
)
from celery_locks.store.connection import CHUNK, CLOSED, reset_at_fork, reset_connection
from celery_locks.store.resp import Incomplete, Reply, pack, parse
from celery_locks.store.server import Address, ServerConfig

T = TypeVar("T")

# Freed in the child, an awaited connection would leave its loop, and so the epoll of the parent.
_parents: list[Any] = []


def leave_to_parent(connections: Any) -> None:
    _parents.append(connections)


class AsyncConnection:
    """One open connection, awaited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rest = b""

    async def send(self, data: bytes) -> None:
        self._connection._writer.write(data)
        await self._connection._writer.drain()

    async def receive(self) -> Reply:
        while True:
            try:
                if self._rest:
                    reply, end = parse(self._rest)
                    self._rest = self._rest[end:]
                    return reply
            except Incomplete:
                pass
            chunk = await self._connection._reader.read(CHUNK)
            if not chunk:
                raise ConnectionError(CLOSED)
            self._rest += chunk

    async def exchange(self, data: bytes) -> Reply:
        await self.send(data)
        return await self.receive()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def abort(self) -> None:
        writer = self._connection._writer
        if writer:
            reset_connection(writer.get_extra_info("socket"))
            writer.transport.abort()
        await self.close()

    def abandon(self) -> None:
        """Close, when the loop has ended: it can do nothing any more, so it is done for it."""
        writer = self._connection._writer
        self._connection._reader = self._connection._writer = None
        if not writer:
            return
        with suppress(RuntimeError):  # it is marked as closed before it asks its loop
            writer.transport.abort()
        tls = getattr(writer.transport, "_ssl_protocol", None)
        transport = tls._transport if tls else writer.transport
        sock = getattr(transport, "_sock", None)
        if sock:
            sock.close()
            transport._sock = None


def of_this_loop(
    by_loop: dict[asyncio.AbstractEventLoop, T], new: Callable[[], T], abandon: Callable[[T], None]
) -> T:
    """What the running loop has. When it is a new one, what ended loops had is abandoned.

    A connection holds its loop, so nothing that holds the connection would ever go by itself.
    """
    loop = asyncio.get_running_loop()
    mine = by_loop.get(loop)
    if mine is None:
        for other in list(by_loop):  # loops of other threads add to it
            if other.is_closed() and (theirs := by_loop.pop(other, None)) is not None:
                abandon(theirs)
        mine = by_loop[loop] = new()
    return mine


def _abandon_all(links: list[AsyncConnection]) -> None:
    for link in links:
        link.abandon()


class AsyncConnectionPool:
    """All connections of this process to one node, kept apart by event loop."""

    def __init__(self, server: ServerConfig, address: Address) -> None:
        self._site = server
        self._address = address
        self._idle: dict[asyncio.AbstractEventLoop, list[AsyncConnection]] = {}
        reset_at_fork(self)

    @property
    def _mine(self) -> list[AsyncConnection]:
        return of_this_loop(self._idle, list, _abandon_all)

    async def exchange(self, data: bytes, deadline: float) -> Reply:
        idle = self._mine
        link: AsyncConnection | None = idle.pop() if idle else None
        try:
            async with asyncio.timeout(deadline - now()):
                link = link or await self.open(deadline)
                reply = await link.exchange(data)
        except (OSError, ValueError) as error:
            await self.close()
            if link:
                await link.abort()
            raise ConnectionFailed(f"no answer from {place_of(self._address)}: {error}") from error
        except BaseException:
            if link:
                await link.abort()
            raise
        idle.append(link)
        return reply

    async def open(self, deadline: float) -> AsyncConnection:
        connection = self._site.connection(self._address, deadline - now(), asyncio=True)
        try:
            await connection.connect()
        except (redis.exceptions.RedisError, OSError) as error:
            raise refusal(self._site, self._address, error) from error
        link = AsyncConnection(connection)
        try:
            await self._meet(link)
        except (ConnectionError, ssl.SSLError, ValueError) as error:
            await link.close()
            raise refusal(self._site, self._address, error) from error
        except BaseException:
            await link.close()
            raise
        return link

    async def _meet(self, link: AsyncConnection) -> None:
        handshake = self._site.handshake(self._address)
        if handshake:
            await link.send(b"".join(handshake))
            replies = [await link.receive() for _ in handshake]
            check_handshake(self._site, self._address, replies)
        if self._address not in self._site.checked:
            check_version(self._site, self._address, await link.exchange(pack("INFO", "server")))
            self._site.checked.add(self._address)

    async def close(self) -> None:
        idle = self._mine
        while idle:
            await idle.pop().close()

    def after_fork(self) -> None:
        leave_to_parent(self._idle)
        self._idle = {}
