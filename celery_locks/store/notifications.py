"""How a waiter is woken: one pub/sub connection per node, read by whoever waits.

There is no listener. Of the threads (or asyncio tasks of one event loop) that wait, one reads the
socket for all of them and wakes those that a message is for; when it leaves, it asks another to
read on. A lone waiter, the usual case, is thus woken by its own read without a switch. A lost
message costs latency only: every waiter asks the store again by itself within a second.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

from celery_locks.clock import now
from celery_locks.store.connect_errors import (
    ConnectionFailed,
    Reply,
    error_reply,
    reason,
    refused_because,
)
from celery_locks.store.connection_pool import ConnectionPool
from celery_locks.store.drivers import FAILURES, TIMEOUTS
from celery_locks.store.scripts import pack

logger = logging.getLogger("celery_locks")

_PING = pack("PING")
# A connection that was silent this long gets a PING.
_SILENCE = 5.0
# After a refusal that is not final, the next attempt to subscribe comes this much later.
_RETRY = 3.0


class _Waiter:
    """One that waits: ``fence`` is what it was handed, ``wakeup`` makes it check again."""

    __slots__ = ("fence", "is_waiting", "wakeup")

    def __init__(self, wakeup: Any) -> None:
        self.fence = 0
        self.is_waiting = False
        self.wakeup = wakeup


class Notifications:
    """The subscription to one channel on one node, and those that wait for its messages."""

    def __init__(self, channel: str, pool: ConnectionPool) -> None:
        self.channel = channel
        self._pool = pool
        self._driver = pool.driver
        self._connection: Any = None
        self._waiters: dict[str, _Waiter] = {}
        self._reading = self._driver.semaphore(is_free=True)
        self._failures = 0
        # While the server does not let us subscribe, waiters poll.
        self._refused_until = 0.0
        self._last_message_at, self._is_ping_sent = 0.0, False

    async def add_waiter(self, token: str, connect: bool, deadline: float) -> str | None:
        """Keep messages for ``token``; return the channel, None if not connected, "-" to poll.

        Raise ``ConnectionFailed`` if an attempt to subscribe fails.
        """
        if self._connection is None and not connect:
            return None
        if self._is_subscription_needed:
            await self._subscribe_once(deadline)
        if self._connection is None:
            self.remove_waiter(token)
            return "-"
        if token not in self._waiters:
            self._waiters[token] = _Waiter(self._driver.semaphore(is_free=False))
        return self.channel

    @property
    def _is_subscription_needed(self) -> bool:
        return self._connection is None and now() >= self._refused_until

    async def _subscribe_once(self, deadline: float) -> None:
        """Subscribe, or wait by the deadline while another does, and share its result."""
        failures = self._failures
        if not await self._driver.acquire(self._reading, deadline):
            return
        try:
            if self._is_subscription_needed and self._failures == failures:
                await self._subscribe(deadline)
        except ConnectionFailed:
            self._failures += 1
            raise
        finally:
            self._driver.release(self._reading)

    def has_waiter(self, token: str) -> bool:
        return token in self._waiters

    def remove_waiter(self, token: str) -> None:
        self._waiters.pop(token, None)

    async def _subscribe(self, deadline: float) -> None:
        connection = await self._pool.open_for_subscription(deadline)
        try:
            await self._driver.send(connection, pack("SUBSCRIBE", self.channel), deadline)
            await self._driver.read(connection, deadline)
        except BaseException as error:
            await self._driver.disconnect(connection)
            if not isinstance(error, FAILURES):
                raise
            reply = error_reply(error)
            if reply is None:
                raise ConnectionFailed(f"cannot subscribe: {reason(error)}") from error
            self._on_refused(reply.text)
            return
        self._connection, self._refused_until = connection, 0.0
        self._last_message_at, self._is_ping_sent = now(), False

    def _on_refused(self, text: str) -> None:
        """Stop trying: permanently without the permission to subscribe, else for a while."""
        if not self._refused_until:
            logger.warning("waiting for locks is slow: the server refuses a subscription: %s", text)
        self._refused_until = math.inf if refused_because(text) else now() + _RETRY

    async def wait(self, token: str, seconds: float) -> int:
        """Return the fence that came for ``token``; 0 if the connection breaks or time is over."""
        deadline = now() + seconds
        waiter = self._waiters.get(token)
        if waiter is None:
            return 0
        waiter.is_waiting = True
        try:
            while not waiter.fence and now() < deadline:
                if not await self._read_or_sleep(waiter, deadline):
                    break
            return waiter.fence
        finally:
            waiter.fence, waiter.is_waiting = 0, False
            self._wake_next_reader()

    async def _read_or_sleep(self, waiter: _Waiter, deadline: float) -> bool:
        """Read for all, or sleep while another does; return False if the connection broke."""
        if not await self._driver.acquire(self._reading, 0.0):
            await self._driver.acquire(waiter.wakeup, deadline)
            return True
        try:
            return bool(waiter.fence) or await self._read(waiter, deadline)
        finally:
            self._driver.release(self._reading)

    async def _read(self, waiter: _Waiter, deadline: float) -> bool:
        """Deliver messages until one is for ``waiter``; return False if the connection broke."""
        connection = self._connection
        if connection is None:
            return False
        try:
            while not waiter.fence and self._connection is connection:
                self._deliver(await self._driver.read(connection, deadline))
            return True
        except TIMEOUTS:
            return await self._keep_alive(connection)
        except FAILURES:
            self._connection = None
            return False
        except asyncio.CancelledError:
            raise  # asyncio keeps the part of a message that has come
        except BaseException:
            self._connection = None  # interrupted, perhaps between two parts of a message
            raise
        finally:
            if self._connection is not connection:
                await self._driver.disconnect(connection)  # broken, or closed meanwhile

    def _deliver(self, reply: Reply) -> None:
        self._last_message_at, self._is_ping_sent = now(), False
        if not isinstance(reply, list) or len(reply) != 3 or reply[0] != b"message":
            return
        token, _, fence = bytes(reply[2]).partition(b" ")  # type: ignore[arg-type]
        waiter = self._waiters.get(token.decode())
        if waiter:
            waiter.fence = int(fence)
            self._driver.release(waiter.wakeup)

    async def _keep_alive(self, connection: Any) -> bool:
        """Ping a silent connection; drop it, and return False, if it did not reply to the last."""
        if now() - self._last_message_at < _SILENCE:
            return True
        try:
            if not self._is_ping_sent:
                self._is_ping_sent = True
                await self._driver.send(connection, _PING, now() + 0.1)
                return True
        except FAILURES:
            pass
        self._connection = None
        return False

    def _wake_next_reader(self) -> None:
        """Ask one that still waits, and not one that is about to leave, to read on."""
        if self._reading.locked():
            return
        for waiter in list(self._waiters.values()):
            if waiter.is_waiting and not waiter.fence:
                self._driver.release(waiter.wakeup)
                return

    async def close(self) -> None:
        """Close the connection; whoever reads it just now closes it when it stops."""
        connection, self._connection = self._connection, None
        if connection is not None and await self._driver.acquire(self._reading, 0.0):
            try:
                await self._driver.disconnect(connection)
            finally:
                self._driver.release(self._reading)
