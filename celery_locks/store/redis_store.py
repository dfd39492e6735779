"""The Redis store: performs effects on a server of any topology, blocking or awaited.

``commands/`` says what to send and what a reply means, ``routing.py`` has the steps of a call,
``connection.py`` the exchange with a node. Here the steps are taken.

Of the connections that a user's pool may open (``max_connections``) one is for the subscription of
those who wait and one for the renewing thread, the rest for calls. With fewer than three, waiters
poll instead of subscribing. The limit is per node and event loop; the metrics recorder's thread
has one connection more, and calls and renewal have one each even where the limit is 1.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_locks.clock import now
from celery_locks.errors import LockUsageError
from celery_locks.store import server_config as servers
from celery_locks.store import url as urls
from celery_locks.store.async_connection import AsyncConnectionPool, leave_to_parent, of_this_loop
from celery_locks.store.async_notifications import AsyncNotifications
from celery_locks.store.calls import Call, Effect, Subscribe, WaitForHandover, run_async, run_sync
from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.connection import ConnectionPool, reset_at_fork
from celery_locks.store.notifications import Notifications
from celery_locks.store.resp import ErrorReply
from celery_locks.store.routing import FIRST_LEAVES, Exchange, Pause, Router
from celery_locks.store.server_config import Address, ServerConfig

# How often a waiter looks where nobody can subscribe and looking costs nothing (fakeredis).
_POLL = 0.02
# While it cannot subscribe, a waiter asks this often: within the time it has to claim a grant.
_UNSUBSCRIBED_POLL = 0.2


def _channel(prefix: str) -> str:
    return f"{prefix}:w:{os.urandom(8).hex()}"


def _close_all(notifications: dict[Address, AsyncNotifications]) -> None:
    for subscription in notifications.values():
        subscription.close_without_loop()


def _calls_limit(server: ServerConfig) -> int:
    return max(1, server.max_connections - 2) if server.max_connections else 0


def _can_subscribe(server: ServerConfig) -> bool:
    return not server.is_in_process and (server.max_connections == 0 or server.max_connections >= 3)


def _poll_interval(server: ServerConfig) -> float:
    return _POLL if server.is_in_process else _UNSUBSCRIBED_POLL


class RedisStore:
    """A store that blocks. Threads may share it; a forked child starts with no connection."""

    def __init__(self, server: ServerConfig, prefix: str = "") -> None:
        self.server = server
        self._prefix = prefix
        self._router = Router(server)
        self._copy: RedisStore | None = None
        self.after_fork()
        reset_at_fork(self)

    @classmethod
    def from_url(
        cls, url: str, prefix: str, options: Mapping[str, Any] | None = None
    ) -> RedisStore:
        return cls(urls.from_url(url, options), prefix)

    @classmethod
    def from_client(cls, client: Any, prefix: str) -> RedisStore:
        """Connect like the client, but with our own timeouts and retries."""
        return cls(servers.from_client(client), prefix)

    def store_for_thread(self) -> RedisStore:
        """Return a store of the same server with one connection of its own, for one thread.

        A greenlet's socket cannot be used in another thread.
        """
        if self._copy is None:
            self._copy = RedisStore(replace(self.server, max_connections=1), self._prefix)
        return self._copy

    def after_fork(self) -> None:
        self._pools: dict[Address, ConnectionPool] = {}
        self._notifications: dict[Address, Notifications] = {}
        self._channel = _channel(self._prefix)

    def perform(self, effect: Effect) -> Any:
        if not isinstance(effect, Call):
            return self._listen(effect) if isinstance(effect, Subscribe) else self._wait(effect)
        # Nearly always it is one exchange with a server that is known: no need for a conversation.
        call, primary = effect, self._router.primary
        pool = self._pools.get(primary) if primary else None
        if pool is None:
            return run_sync(self._router.conversation(call), self._step)
        deadline = now() + call.budget
        failed: ErrorReply | ConnectionFailed
        try:
            reply = pool.exchange(call.packed, deadline - call.budget * FIRST_LEAVES)
            if not isinstance(reply, ErrorReply):
                return call.parse(reply)
            failed = reply
        except ConnectionFailed as error:
            failed = error
        return run_sync(self._router.conversation(call, deadline, failed), self._step)

    def _step(self, step: Exchange | Pause) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        return self._pool(step.address).exchange(step.data, step.deadline)

    def _pool(self, address: Address) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            new = ConnectionPool(self.server, address, _calls_limit(self.server))
            pool = self._pools.setdefault(address, new)
        return pool

    def _listen(self, listen: Subscribe) -> str | None:
        if not _can_subscribe(self.server):
            return "-"
        if not listen.connect and not self._notifications:
            return None
        deadline = now() + listen.budget
        try:
            address = run_sync(self._router.address(listen.root, deadline), self._step)
            notifications = self._notifications_of(address)
            self._unsubscribe_elsewhere(notifications, listen.token)
            return notifications.expect(listen.token, connect=listen.connect, deadline=deadline)
        except ConnectionFailed:
            self._router.forget()
            self.unsubscribe(listen.token)
            return "-" if listen.connect else None

    def _notifications_of(self, address: Address) -> Notifications:
        notifications = self._notifications.get(address)
        if notifications is None:
            new = Notifications(self._channel, self._pool(address))
            notifications = self._notifications.setdefault(address, new)
        return notifications

    def _wait(self, wait: WaitForHandover) -> int:
        for notifications in list(self._notifications.values()):  # other threads add to it
            if notifications.expects(wait.token):
                return notifications.wait(wait.token, wait.seconds)
        time.sleep(min(wait.seconds, _poll_interval(self.server)))
        return 0

    def unsubscribe(self, token: str) -> None:
        self._unsubscribe_elsewhere(None, token)

    def _unsubscribe_elsewhere(self, kept: Notifications | None, token: str) -> None:
        """Leave the other nodes: after a failover the old one would end every wait at once."""
        for notifications in list(self._notifications.values()):
            if notifications is not kept:
                notifications.unexpect(token)

    def close(self) -> None:
        """Close idle connections; the store stays usable and connects again when needed."""
        for notifications in list(self._notifications.values()):
            notifications.close()
        for pool in list(self._pools.values()):
            pool.close()
        if self._copy is not None:
            self._copy.close()


class AsyncRedisStore:
    """A store that is awaited. Connections belong to the event loop that opened them."""

    def __init__(
        self, server: ServerConfig, prefix: str = "", blocking: RedisStore | None = None
    ) -> None:
        self.server = server
        self._prefix = prefix
        self._router = Router(server)
        self._blocking = blocking or RedisStore(replace(server, max_connections=1), prefix)
        self._forget()
        reset_at_fork(self)

    @classmethod
    def from_url(cls, url: str, prefix: str) -> AsyncRedisStore:
        return cls(urls.from_url(url), prefix)

    @classmethod
    def from_client(
        cls, client: Any, prefix: str, blocking: RedisStore | None = None
    ) -> AsyncRedisStore:
        server = servers.from_client(client)
        if server.is_in_process and blocking is None:
            raise LockUsageError(
                f"{client!r} has no sockets, so leases cannot be renewed beside it; "
                "give a blocking client of the same server as renewer_client"
            )
        return cls(server, prefix, blocking)

    def after_fork(self) -> None:
        leave_to_parent(self._notifications)
        self._forget()

    def _forget(self) -> None:
        self._pools: dict[Address, AsyncConnectionPool] = {}
        self._notifications: dict[asyncio.AbstractEventLoop, dict[Address, AsyncNotifications]] = {}

    def store_for_thread(self) -> RedisStore:
        return self._blocking

    async def perform(self, effect: Effect) -> Any:
        if not isinstance(effect, Call):
            waiting = self._listen(effect) if isinstance(effect, Subscribe) else self._wait(effect)
            return await waiting
        call, primary = effect, self._router.primary
        pool = self._pools.get(primary) if primary else None
        if pool is None:
            return await run_async(self._router.conversation(call), self._step)
        deadline = now() + call.budget
        failed: ErrorReply | ConnectionFailed
        try:
            reply = await pool.exchange(call.packed, deadline - call.budget * FIRST_LEAVES)
            if not isinstance(reply, ErrorReply):
                return call.parse(reply)
            failed = reply
        except ConnectionFailed as error:
            failed = error
        return await run_async(self._router.conversation(call, deadline, failed), self._step)

    async def _step(self, step: Exchange | Pause) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self._pool(step.address).exchange(step.data, step.deadline)

    def _pool(self, address: Address) -> AsyncConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            pool = AsyncConnectionPool(self.server, address, _calls_limit(self.server))
            self._pools[address] = pool
        return pool

    async def _listen(self, listen: Subscribe) -> str | None:
        if not _can_subscribe(self.server):
            return "-"
        if not listen.connect and not self._of_this_loop:
            return None
        deadline = now() + listen.budget
        try:
            finding = self._router.address(listen.root, deadline)
            notifications = self._notifications_of(await run_async(finding, self._step))
            self._unsubscribe_elsewhere(notifications, listen.token)
            return await notifications.expect(
                listen.token, connect=listen.connect, deadline=deadline
            )
        except ConnectionFailed:
            self._router.forget()
            self.unsubscribe(listen.token)
            return "-" if listen.connect else None

    @property
    def _of_this_loop(self) -> dict[Address, AsyncNotifications]:
        return of_this_loop(self._notifications, dict, _close_all)

    def _notifications_of(self, address: Address) -> AsyncNotifications:
        by_address = self._of_this_loop
        if address not in by_address:
            # One channel per loop: the message must reach the loop that waits.
            by_address[address] = AsyncNotifications(_channel(self._prefix), self._pool(address))
        return by_address[address]

    async def _wait(self, wait: WaitForHandover) -> int:
        for notifications in self._of_this_loop.values():
            if notifications.expects(wait.token):
                return await notifications.wait(wait.token, wait.seconds)
        await asyncio.sleep(min(wait.seconds, _poll_interval(self.server)))
        return 0

    def unsubscribe(self, token: str) -> None:
        self._unsubscribe_elsewhere(None, token)

    def _unsubscribe_elsewhere(self, kept: AsyncNotifications | None, token: str) -> None:
        for notifications in self._of_this_loop.values():
            if notifications is not kept:
                notifications.unexpect(token)

    async def close(self) -> None:
        for notifications in self._of_this_loop.values():
            await notifications.close()
        for pool in self._pools.values():
            await pool.close()
        self._blocking.close()
