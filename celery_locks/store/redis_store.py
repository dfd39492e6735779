"""The Redis store: performs effects on a server of any topology, blocking or awaited.

``commands/`` says what to send and what a reply means, ``routing.py`` has the steps of a call,
``connection_pool.py`` the exchange with a node, ``drivers.py`` the blocking and the awaiting.

Of the connections that a user's pool may open (``max_connections``) one is for the subscription of
those who wait and one for the renewing thread, the rest for calls. With fewer than three, waiters
poll instead of subscribing. The limit is per node and event loop; the metrics recorder's thread
has one connection more, and calls and renewal have one each even where the limit is 1.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Self

from celery_locks.clock import now
from celery_locks.errors import LockUsageError
from celery_locks.forking import run_after_fork
from celery_locks.store import connection_config as servers
from celery_locks.store import url as urls
from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.connection_config import Address, ServerConfig
from celery_locks.store.connection_pool import ConnectionPools
from celery_locks.store.drivers import AsyncDriver, BlockingDriver, Driver, run_blocking
from celery_locks.store.effects import Call, Effect, Sleep, Subscribe, WaitForHandover
from celery_locks.store.notifications import Notifications
from celery_locks.store.routing import Router
from celery_locks.unpatched import native_lock

# How often a waiter looks where nobody can subscribe and looking costs nothing (fakeredis).
_POLL = 0.02
# While it cannot subscribe, a waiter asks this often: within the time it has to claim a grant.
_UNSUBSCRIBED_POLL = 0.2

_stores: weakref.WeakSet[_Store] = weakref.WeakSet()
# A connection that is freed in a forked child would remove itself from the parent's epoll.
_left_to_parent: list[Any] = []


def _after_fork() -> None:
    for store in list(_stores):
        store.forget_connections()


run_after_fork(_after_fork, "store")


class _Connections:
    """Performs effects with the connections of one process, or of one event loop."""

    def __init__(self, driver: Driver, server: ServerConfig, prefix: str) -> None:
        self.driver: Any = driver
        self._server = server
        self._pools = ConnectionPools(driver, server)
        self._router = Router(server, self._pools.exchange, driver.sleep)
        # The message must reach the process, and the loop, that waits.
        self._channel = f"{prefix}:w:{os.urandom(8).hex()}"
        self._notifications: dict[Address, Notifications] = {}

    def perform(self, effect: Effect) -> Coroutine[Any, Any, Any]:
        if isinstance(effect, Call):
            return self._router.perform(effect)
        if isinstance(effect, Sleep):
            sleep: Coroutine[Any, Any, None] = self.driver.sleep(effect.seconds)
            return sleep
        return self._subscribe(effect) if isinstance(effect, Subscribe) else self._wait(effect)

    async def _subscribe(self, effect: Subscribe) -> str | None:
        if self._server.is_in_process or self._server.max_connections in (1, 2):
            return "-"
        if not effect.connect and not self._notifications:
            return None
        token, deadline = effect.token, now() + effect.budget
        try:
            address = await self._router.address(effect.root, deadline)
            if address not in self._notifications:
                new = Notifications(self._channel, self._pools.pool(address))
                self._notifications.setdefault(address, new)
            notifications = self._notifications[address]
            self.remove_waiter(token, kept=notifications)
            return await notifications.add_waiter(token, effect.connect, deadline)
        except ConnectionFailed:
            self._router.forget()
            self.remove_waiter(token)
            return "-" if effect.connect else None

    async def _wait(self, effect: WaitForHandover) -> int:
        for notifications in list(self._notifications.values()):  # other threads add to it
            if notifications.has_waiter(effect.token):
                return await notifications.wait(effect.token, effect.seconds)
        poll = _POLL if self._server.is_in_process else _UNSUBSCRIBED_POLL
        await self.driver.sleep(min(effect.seconds, poll))
        return 0

    def remove_waiter(self, token: str, kept: Notifications | None = None) -> None:
        """Wait on no other node: after a failover the old one would end every wait at once."""
        for notifications in list(self._notifications.values()):
            if notifications is not kept:
                notifications.remove_waiter(token)

    async def close(self) -> None:
        for notifications in list(self._notifications.values()):
            await notifications.close()
        await self._pools.close()


class _Store:
    def __init__(self, server: ServerConfig, prefix: str) -> None:
        self.server = server
        self._prefix = prefix
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str, prefix: str, options: Mapping[str, Any] | None = None) -> Self:
        return cls(urls.from_url(url, options), prefix)

    def forget_connections(self) -> None:
        """Start with none, in a forked child: the sockets and locks are the parent's."""
        raise NotImplementedError


class RedisStore(_Store):
    """A store that blocks. Threads may share it; a forked child starts with no connection."""

    def __init__(
        self, server: ServerConfig, prefix: str = "", driver: BlockingDriver | None = None
    ) -> None:
        super().__init__(server, prefix)
        self._driver = driver or BlockingDriver()
        self._copy: RedisStore | None = None
        self.forget_connections()

    @classmethod
    def from_client(cls, client: Any, prefix: str) -> RedisStore:
        """Connect like the client, but with our own timeouts and retries."""
        return cls(servers.from_client(client), prefix)

    def store_for_thread(self) -> RedisStore:
        """Return a store of the same server with one connection of its own, for native threads.

        A greenlet's socket and locks cannot be used in another thread.
        """
        if self._copy is None:
            server = replace(self.server, max_connections=1)
            self._copy = RedisStore(server, self._prefix, BlockingDriver(native_lock))
        return self._copy

    def forget_connections(self) -> None:
        self._connections = _Connections(self._driver, self.server, self._prefix)

    def perform(self, effect: Effect) -> Any:
        return run_blocking(self._connections.perform, effect)

    def unsubscribe(self, token: str) -> None:
        self._connections.remove_waiter(token)

    def close(self) -> None:
        """Close idle connections; the store stays usable and connects again when needed."""
        run_blocking(self._connections.close)
        if self._copy is not None:
            self._copy.close()


class AsyncRedisStore(_Store):
    """A store that is awaited. Connections belong to the event loop that opened them."""

    def __init__(
        self, server: ServerConfig, prefix: str = "", blocking: RedisStore | None = None
    ) -> None:
        super().__init__(server, prefix)
        self._blocking = blocking or RedisStore(server, prefix).store_for_thread()
        self._by_loop: dict[asyncio.AbstractEventLoop, _Connections] = {}

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

    def store_for_thread(self) -> RedisStore:
        return self._blocking

    def forget_connections(self) -> None:
        _left_to_parent.append(self._by_loop)
        self._by_loop = {}

    @property
    def _connections(self) -> _Connections:
        """Those of the running loop; for a new loop, close what ended loops had.

        A connection holds its loop, so nothing that holds the connection would be freed by itself.
        """
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for other in list(self._by_loop):  # loops of other threads add to it
                if other.is_closed() and (ended := self._by_loop.pop(other, None)) is not None:
                    ended.driver.close_without_loop()
            found = _Connections(AsyncDriver(), self.server, self._prefix)
            self._by_loop[loop] = found
        return found

    def perform(self, effect: Effect) -> Coroutine[Any, Any, Any]:
        return self._connections.perform(effect)

    def unsubscribe(self, token: str) -> None:
        self._connections.remove_waiter(token)

    async def close(self) -> None:
        await self._connections.close()
        self._blocking.close()
