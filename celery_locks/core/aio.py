"""AsyncLocks: the locks for asyncio. The same operations as in ``locks.py``, awaited.

The native background threads renew the leases over blocking connections of their own, so an event
loop that is busy does not lose its locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from celery_locks.core.lease import AsyncLease
from celery_locks.core.operations import Operations
from celery_locks.core.queries import Queries
from celery_locks.core.rates import RateOperations
from celery_locks.core.requests import (
    AcquireOptions,
    Layout,
    layout_of,
    new_token,
    shows_acquire_options,
)
from celery_locks.rates import Rate
from celery_locks.store.effects import AsyncStore, Operation, run_async
from celery_locks.store.redis_store import AsyncRedisStore, RedisStore
from celery_locks.types import DEFAULT_PREFIX, ActiveRun, Conflict, Holder, LockInfo
from celery_locks.validation import Wait

T = TypeVar("T")


class AsyncLocks:
    """Named locks on one server, for code that awaits. May be used from several event loops.

    ``renewer_client``, a blocking client of the same server, is needed only for a client without
    sockets (fakeredis), where the background thread cannot open a connection of its own.
    """

    def __init__(
        self, client: Any, *, renewer_client: Any = None, **layout: Unpack[Layout]
    ) -> None:
        prefix = layout.get("prefix", DEFAULT_PREFIX)
        renewer_store = (
            RedisStore.from_client(renewer_client, prefix) if renewer_client is not None else None
        )
        self._setup(AsyncRedisStore.from_client(client, prefix, renewer_store), layout)

    def _setup(self, store: AsyncRedisStore, layout: Layout) -> None:
        self._store: AsyncStore = store
        self.commands, self.ttl = layout_of(store, layout)
        self.operations = Operations(self, AsyncLease, store, self.commands)
        self.queries = Queries(self.commands)
        self.rates = RateOperations(self.commands)

    @classmethod
    def from_url(cls, url: str, **layout: Unpack[Layout]) -> Self:
        """Do as ``Locks.from_url``."""
        locks = cls.__new__(cls)
        locks._setup(AsyncRedisStore.from_url(url, layout.get("prefix", DEFAULT_PREFIX)), layout)
        return locks

    @classmethod
    def from_client(
        cls, client: Any, *, renewer_client: Any = None, **layout: Unpack[Layout]
    ) -> Self:
        return cls(client, renewer_client=renewer_client, **layout)

    @shows_acquire_options
    async def acquire(
        self, name: str, *more: str, **options: Unpack[AcquireOptions]
    ) -> AsyncLease | None:
        """Acquire a lock: return a lease, renewed until it is released; None if others hold it.

        ``await lease.release()`` releases it. Prefer ``hold``, which cannot forget that. Options
        and exceptions are those of ``hold``.
        """
        answer = await self.run(
            self.operations.acquire_by_name((name, *more), new_token(), self.ttl, options)
        )
        return None if isinstance(answer, Conflict) else answer

    @shows_acquire_options
    async def try_acquire(
        self, name: str, *more: str, **options: Unpack[AcquireOptions]
    ) -> AsyncLease | Conflict:
        """Do as ``Locks.try_acquire``; reentrant for this asyncio task, not for its children."""
        return await self.run(
            self.operations.acquire_by_name((name, *more), new_token(), self.ttl, options)
        )

    @overload
    def hold(
        self,
        name: str,
        *more: str,
        required: Literal[True] = True,
        **options: Unpack[AcquireOptions],
    ) -> AbstractAsyncContextManager[AsyncLease]: ...
    @overload
    def hold(
        self, name: str, *more: str, required: bool, **options: Unpack[AcquireOptions]
    ) -> AbstractAsyncContextManager[AsyncLease | None]: ...
    @shows_acquire_options
    @asynccontextmanager
    async def hold(
        self, name: str, *more: str, required: bool = True, **options: Unpack[AcquireOptions]
    ) -> AsyncIterator[Any]:
        """Hold the lock while the block runs; ``as`` gives the lease.

            async with locks.hold("invoice:42", wait=5) as lease:
                await write(invoice, fence=lease.fence)

        With several names it acquires all of them or none, and ``lease.fences`` has each fence.

        ``required``: if False, yield None instead of raising when others hold the lock.
        ``ttl``: seconds that the lock outlives this process; it is renewed while the block runs.
        ``limit``: how many may hold it at once. Use the same number everywhere: a caller is granted
        a slot if fewer than its own limit hold the lock and nobody waits. An operator's limit wins.
        For several names it may be a list.
        ``shared``: any number of callers with ``shared=True`` hold it at once, and nobody else.
        ``wait``: seconds to wait for it in line, or "forever"; None or 0: not at all.
        ``at_least``: seconds that it stays taken, counted from the start, if the block is shorter.
        ``reentrant``: let this asyncio task enter again what it holds already.
        ``on_lost``: called with the lease when it is lost while the block runs.
        ``on_stop``: called with the lease when somebody asks its holder to stop.
        ``holder``: who it is that holds it, for those who look; this process by default.

        Raises ``LockConflict`` if others hold it (and the wait is over), ``LeaseLost`` at the end
        of a block that outlived its lease, ``LockUnavailable`` if the lock server gives no usable
        answer, ``LockUsageError`` if an option is wrong.
        """
        token = new_token()
        lease = await self.run(
            self.operations.enter_hold((name, *more), token, self.ttl, options, required)
        )
        failed = True
        try:
            yield lease
            failed = False
        finally:
            await self.run(self.operations.exit_hold(lease, failed, token))

    async def renew(self, lease: AsyncLease, ttl: float | None = None) -> None:
        await self.run(self.operations.renew(lease, ttl))

    async def release(self, lease: AsyncLease) -> bool:
        return await self.run(self.operations.release_entry(lease))

    async def info(self, name: str) -> LockInfo | None:
        return await self.run(self.queries.info(name))

    async def holders(self, name: str) -> tuple[Holder, ...]:
        return await self.run(self.queries.holders(name))

    async def is_locked(self, name: str, *, max_age: float = 0.0) -> bool:
        """Do as ``Locks.is_locked``."""
        return await self.run(self.queries.is_locked(name, max_age))

    async def stop(self, name: str, token: str | None = None) -> tuple[Holder, ...]:
        """Do as ``Locks.stop``."""
        return await self.run(self.operations.stop(name, token))

    async def throttle(
        self,
        key: str,
        rate: str | Sequence[str],
        *,
        wait: Wait | None = None,
        burst: int = 1,
        cost: float = 1,
    ) -> None:
        """Do as ``Locks.throttle``."""
        await self.run(self.rates.throttle(key, Rate.parse(rate, burst, cost), wait))

    async def push_back(self, key: str, seconds: float) -> None:
        """Do as ``Locks.push_back``."""
        await self.run(self.rates.push_back(key, seconds))

    async def active(self, worker: str | None = None) -> list[ActiveRun]:
        """Do as ``Locks.active``."""
        return await self.run(self.queries.active(worker))

    def run(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        """Do as ``Locks.run``."""
        return run_async(operation, self._store.perform)

    async def close(self) -> None:
        self.operations.close()
        await self._store.close()
