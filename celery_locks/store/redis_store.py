"""The Redis store: performs effects on a server of any shape, blocking or awaited.

What to send and what it means is in ``verbs.py``, the steps of a call in ``router.py``, bytes in
``wire.py``. Here the steps are taken.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from celery_locks.clock import now
from celery_locks.errors import LockUsageError
from celery_locks.store import server as sites
from celery_locks.store import url as url_sites
from celery_locks.store.async_connection import AsyncConnectionPool, leave_to_parent, of_this_loop
from celery_locks.store.async_notifications import AsyncNotifications
from celery_locks.store.client_connection import AsyncClientConnection, ClientConnection
from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.connection import ConnectionPool, reset_at_fork
from celery_locks.store.effects import Call, Effect, Subscribe, WaitForHandover, run_async, run_sync
from celery_locks.store.notifications import Notifications
from celery_locks.store.resp import ErrorReply
from celery_locks.store.routing import FIRST_LEAVES, Exchange, Pause, Router
from celery_locks.store.server import Address, ServerConfig

_NO_PLACE: Address = ("in this process", 0)
# A store that cannot listen (fakeredis) lets its waiters look this often.
_POLL = 0.02
# While it cannot be listened to, a waiter asks this often: within the time it has to claim a grant.
_UNSUBSCRIBED_POLL = 0.2


def _channel(prefix: str) -> str:
    return f"{prefix}:w:{os.urandom(8).hex()}"


def _abandon_all(mailboxes: dict[Address, AsyncNotifications]) -> None:
    for mailbox in mailboxes.values():
        mailbox.abandon()


class RedisStore:
    """Blocks. Safe to share between threads; a forked child starts with no connection."""

    def __init__(self, server: ServerConfig | None, client: Any = None, prefix: str = "") -> None:
        self.server = server or ServerConfig("single", (_NO_PLACE,))
        self._client = client if server is None else None
        self._prefix = prefix
        self._router = Router(self.server)
        self._twin: RedisStore | None = None
        self.after_fork()
        reset_at_fork(self)

    @classmethod
    def from_url(
        cls, url: str, prefix: str, options: Mapping[str, Any] | None = None
    ) -> RedisStore:
        return cls(url_sites.from_url(url, options), prefix=prefix)

    @classmethod
    def from_client(cls, client: Any, prefix: str) -> RedisStore:
        """Takes over where and who of the client, not its timeouts, retries or decoding."""
        return cls(sites.from_client(client), client, prefix)

    def store_for_thread(self) -> RedisStore:
        """A store of the same server with connections of its own, for the keeper's thread.

        A greenlet's socket cannot be used in another thread.
        """
        if self._twin is None:
            self._twin = RedisStore(
                None if self._client is not None else self.server, self._client, self._prefix
            )
        return self._twin

    def after_fork(self) -> None:
        self._wires: dict[Address, ConnectionPool | ClientConnection] = {}
        self._mailboxes: dict[Address, Notifications] = {}
        self._channel = _channel(self._prefix)

    def perform(self, effect: Effect) -> Any:
        if not isinstance(effect, Call):
            return self._listen(effect) if isinstance(effect, Subscribe) else self._nap(effect)
        # Nearly always it is one exchange with a server that is known: no need for a conversation.
        call, primary = effect, self._router.primary
        wire = self._wires.get(primary) if primary else None
        if wire is None:
            return run_sync(self._router.conversation(call), self._step)
        deadline = now() + call.budget
        failed: ErrorReply | ConnectionFailed
        try:
            reply = wire.exchange(call.packed, deadline - call.budget * FIRST_LEAVES)
            if not isinstance(reply, ErrorReply):
                return call.parse(reply)
            failed = reply
        except ConnectionFailed as error:
            failed = error
        return run_sync(self._router.conversation(call, deadline, failed), self._step)

    def _step(self, step: Exchange | Pause) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        return self._wire(step.address).exchange(step.data, step.deadline)

    def _wire(self, address: Address) -> ConnectionPool | ClientConnection:
        wire = self._wires.get(address)
        if wire is None:
            made = (
                ClientConnection(self._client)
                if self._client is not None
                else ConnectionPool(self.server, address)
            )
            wire = self._wires.setdefault(address, made)
        return wire

    def _listen(self, listen: Subscribe) -> str | None:
        if self._client is not None:
            return "-"
        if not listen.connect and not self._mailboxes:
            return None
        deadline = now() + listen.budget
        try:
            address = run_sync(self._router.address(listen.root, deadline), self._step)
            mailbox = self._mailbox(address)
            self._unsubscribe_elsewhere(mailbox, listen.token)
            return mailbox.expect(listen.token, connect=listen.connect, deadline=deadline)
        except ConnectionFailed:
            self._router.forget()
            self.unsubscribe(listen.token)
            return "-" if listen.connect else None

    def _mailbox(self, address: Address) -> Notifications:
        mailbox = self._mailboxes.get(address)
        if mailbox is None:
            wire = self._wire(address)
            assert isinstance(wire, ConnectionPool)
            mailbox = self._mailboxes.setdefault(address, Notifications(self._channel, wire))
        return mailbox

    def _nap(self, nap: WaitForHandover) -> int:
        for mailbox in list(self._mailboxes.values()):  # other threads add to it
            if mailbox.expects(nap.token):
                return mailbox.wait(nap.token, nap.seconds)
        time.sleep(min(nap.seconds, _POLL if self._client is not None else _UNSUBSCRIBED_POLL))
        return 0

    def unsubscribe(self, token: str) -> None:
        self._unsubscribe_elsewhere(None, token)

    def _unsubscribe_elsewhere(self, place: Notifications | None, token: str) -> None:
        """After a failover nothing comes from the old node, and its dead mailbox ends every nap."""
        for mailbox in list(self._mailboxes.values()):
            if mailbox is not place:
                mailbox.unexpect(token)

    def close(self) -> None:
        """Close what idles; the store stays usable and opens anew when asked."""
        for mailbox in list(self._mailboxes.values()):
            mailbox.close()
        for wire in list(self._wires.values()):
            wire.close()
        if self._twin is not None:
            self._twin.close()


class AsyncRedisStore:
    """Awaited. Connections belong to the event loop that opened them."""

    def __init__(
        self,
        server: ServerConfig | None,
        client: Any = None,
        prefix: str = "",
        twin: RedisStore | None = None,
    ) -> None:
        self.server = server or ServerConfig("single", (_NO_PLACE,))
        self._client = client if server is None else None
        self._prefix = prefix
        self._router = Router(self.server)
        self._twin = twin or RedisStore(self.server, prefix=prefix)
        self._forget()
        reset_at_fork(self)

    @classmethod
    def from_url(cls, url: str, prefix: str) -> AsyncRedisStore:
        return cls(url_sites.from_url(url), prefix=prefix)

    @classmethod
    def from_client(
        cls, client: Any, prefix: str, twin: RedisStore | None = None
    ) -> AsyncRedisStore:
        server = sites.from_client(client)
        if server is None and twin is None:
            raise LockUsageError(
                f"{client!r} has no sockets, so leases cannot be renewed beside it; "
                "give a blocking client of the same server as renewer_client"
            )
        return cls(server, client, prefix, twin)

    def after_fork(self) -> None:
        leave_to_parent(self._mailboxes)
        self._forget()

    def _forget(self) -> None:
        self._wires: dict[Address, AsyncConnectionPool | AsyncClientConnection] = {}
        self._mailboxes: dict[asyncio.AbstractEventLoop, dict[Address, AsyncNotifications]] = {}

    def store_for_thread(self) -> RedisStore:
        return self._twin

    async def perform(self, effect: Effect) -> Any:
        if not isinstance(effect, Call):
            waiting = self._listen(effect) if isinstance(effect, Subscribe) else self._nap(effect)
            return await waiting
        call, primary = effect, self._router.primary
        wire = self._wires.get(primary) if primary else None
        if wire is None:
            return await run_async(self._router.conversation(call), self._step)
        deadline = now() + call.budget
        failed: ErrorReply | ConnectionFailed
        try:
            reply = await wire.exchange(call.packed, deadline - call.budget * FIRST_LEAVES)
            if not isinstance(reply, ErrorReply):
                return call.parse(reply)
            failed = reply
        except ConnectionFailed as error:
            failed = error
        return await run_async(self._router.conversation(call, deadline, failed), self._step)

    async def _step(self, step: Exchange | Pause) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self._wire(step.address).exchange(step.data, step.deadline)

    def _wire(self, address: Address) -> AsyncConnectionPool | AsyncClientConnection:
        wire = self._wires.get(address)
        if wire is None:
            if self._client is not None:
                wire = AsyncClientConnection(self._client)
            else:
                wire = AsyncConnectionPool(self.server, address)
            self._wires[address] = wire
        return wire

    async def _listen(self, listen: Subscribe) -> str | None:
        if self._client is not None:
            return "-"
        if not listen.connect and not self._mine:
            return None
        deadline = now() + listen.budget
        try:
            finding = self._router.address(listen.root, deadline)
            mailbox = self._mailbox(await run_async(finding, self._step))
            self._unsubscribe_elsewhere(mailbox, listen.token)
            return await mailbox.expect(listen.token, connect=listen.connect, deadline=deadline)
        except ConnectionFailed:
            self._router.forget()
            self.unsubscribe(listen.token)
            return "-" if listen.connect else None

    @property
    def _mine(self) -> dict[Address, AsyncNotifications]:
        return of_this_loop(self._mailboxes, dict, _abandon_all)

    def _mailbox(self, address: Address) -> AsyncNotifications:
        mailbox = self._mine.get(address)
        if mailbox is None:
            wire = self._wire(address)
            assert isinstance(wire, AsyncConnectionPool)
            # One channel per loop: the message must reach the loop that waits.
            mailbox = self._mine[address] = AsyncNotifications(_channel(self._prefix), wire)
        return mailbox

    async def _nap(self, nap: WaitForHandover) -> int:
        for mailbox in self._mine.values():
            if mailbox.expects(nap.token):
                return await mailbox.wait(nap.token, nap.seconds)
        await asyncio.sleep(
            min(nap.seconds, _POLL if self._client is not None else _UNSUBSCRIBED_POLL)
        )
        return 0

    def unsubscribe(self, token: str) -> None:
        self._unsubscribe_elsewhere(None, token)

    def _unsubscribe_elsewhere(self, place: AsyncNotifications | None, token: str) -> None:
        for mailbox in self._mine.values():
            if mailbox is not place:
                mailbox.unexpect(token)

    async def close(self) -> None:
        for mailbox in self._mine.values():
            await mailbox.close()
        for wire in self._wires.values():
            await wire.close()
        self._twin.close()
