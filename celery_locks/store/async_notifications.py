"""``mailbox.py``, awaited: one connection per event loop and node, read by a task of the loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from celery_locks.clock import now
from celery_locks.store.async_connection import AsyncConnection, AsyncConnectionPool
from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.notifications import Keepalive, SubscriptionHealth, mail_in
from celery_locks.store.resp import ErrorReply, Reply, pack


class _Waiter:
    """One awaiting waiter: ``fence`` is what it was handed."""

    __slots__ = ("came", "fence")

    def __init__(self) -> None:
        self.fence = 0
        self.came = asyncio.Event()


class AsyncNotifications:
    """That of one channel and event loop."""

    def __init__(self, channel: str, wire: AsyncConnectionPool) -> None:
        self.channel = channel
        self._wire = wire
        self._link: AsyncConnection | None = None
        self._letters: dict[str, _Waiter] = {}
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._pulse = Keepalive()
        self._ear = SubscriptionHealth()
        self._failures = 0

    async def expect(self, token: str, *, connect: bool, deadline: float) -> str | None:
        if self._link is None and not connect:
            return None
        if self._link is None and not self._ear.is_deaf:
            await self._connect(deadline)
        if self._link is None:
            self.unexpect(token)
            return "-"
        self._letters.setdefault(token, _Waiter())
        return self.channel

    async def _connect(self, deadline: float) -> None:
        failures = self._failures
        try:
            async with asyncio.timeout(deadline - now()):
                await self._connecting.acquire()
        except TimeoutError:
            return
        try:
            if self._link is None and not self._ear.is_deaf and self._failures == failures:
                await self._subscribe(deadline)
        except ConnectionFailed:
            self._failures += 1
            raise
        finally:
            self._connecting.release()

    def expects(self, token: str) -> bool:
        return token in self._letters

    def unexpect(self, token: str) -> None:
        self._letters.pop(token, None)

    async def _subscribe(self, deadline: float) -> None:
        link: AsyncConnection | None = None
        try:
            async with asyncio.timeout(deadline - now()):
                link = await self._wire.open(deadline)
                reply = await link.exchange(pack("SUBSCRIBE", self.channel))
        except BaseException as error:
            if link:
                await link.close()
            if isinstance(error, OSError | ValueError):
                raise ConnectionFailed(f"cannot subscribe: {error}") from error
            raise
        if isinstance(reply, ErrorReply):
            await link.close()
            self._ear.refused(reply)
            return
        self._link = link
        self._ear.hears()
        self._pulse.heard()
        self._reader = asyncio.create_task(self._read(link))

    async def _read(self, link: AsyncConnection) -> None:
        try:
            while True:
                self._deliver(await link.receive())
        except (OSError, ValueError):
            self._link = None
            self._wake_all()
            await link.close()

    def _deliver(self, reply: Reply) -> None:
        self._pulse.heard()
        token, fence = mail_in(reply)
        letter = self._letters.get(token)
        if letter:
            letter.fence = fence
            letter.came.set()

    def _wake_all(self) -> None:
        for letter in self._letters.values():
            letter.came.set()

    async def wait(self, token: str, seconds: float) -> int:
        letter = self._letters.get(token)
        if letter is None:
            return 0
        try:
            async with asyncio.timeout(seconds):
                await letter.came.wait()
        except TimeoutError:
            await self._keep_alive()
        letter.came.clear()
        fence, letter.fence = letter.fence, 0
        return fence

    async def _keep_alive(self) -> None:
        verdict = self._pulse.verdict()
        if verdict == "ask" and self._link:
            with suppress(OSError):
                await self._link.send(pack("PING"))
        if verdict == "dead":
            await self.close()

    async def close(self) -> None:
        if self._reader:
            self._reader.cancel()
        if self._link:
            await self._link.close()
        self._link = None

    def abandon(self) -> None:
        """The loop has ended, and the reader with it."""
        if self._reader:
            # Who closed the loop under it could not know of it: no complaint.
            self._reader._log_destroy_pending = False  # type: ignore[attr-defined]
        if self._link:
            self._link.abandon()
        self._link = None
