"""AsyncLocks: the locks for asyncio. The same operations as in ``locks.py``, awaited.

The native background threads renew the leases over blocking connections of their own, so an event
loop that is busy does not lose its locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from celery_locks.clock import now
from celery_locks.core.lease import AsyncLease
from celery_locks.core.locks import RecentAnswers, runs_in
from celery_locks.core.operations import Operations
from celery_locks.core.requests import (
    AcquireOptions,
    AcquireRequest,
    Layout,
    layout_of,
    new_token,
    request_of,
    shows_acquire_options,
    spec_of,
)
from celery_locks.errors import LockConflict
from celery_locks.store.calls import AsyncStore, Operation, run_async
from celery_locks.store.commands.replies import Completed, Ended
from celery_locks.store.redis_store import AsyncRedisStore, RedisStore
from celery_locks.types import DEFAULT_PREFIX, ActiveRun, Conflict, Holder, LockInfo
from celery_locks.validation import check_name

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
        self.operations = Operations(
            self, AsyncLease, store.store_for_thread(), self.commands, store.unsubscribe
        )
        self._recent = RecentAnswers()

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
    async def acquire(self, name: str, **options: Unpack[AcquireOptions]) -> AsyncLease | None:
        """Acquire a lock: return a lease, renewed until it is released; None if others hold it.

        ``await lease.release()`` releases it. Prefer ``hold``, which cannot forget that. Options
        and exceptions are those of ``hold``.
        """
        answer = await self._try_acquire(name, new_token(), options)
        return None if isinstance(answer, Conflict) else answer

    @shows_acquire_options
    async def try_acquire(
        self, name: str, **options: Unpack[AcquireOptions]
    ) -> AsyncLease | Conflict:
        """Do as ``Locks.try_acquire``; reentrant for this asyncio task, not for its children."""
        return await self._try_acquire(name, new_token(), options)

    async def _try_acquire(
        self, name: str, token: str, options: AcquireOptions, *, is_block: bool = False
    ) -> AsyncLease | Conflict:
        """Acquire; with ``is_block`` the asyncio task that acquires it also releases it."""
        request: AcquireRequest[AsyncLease] = request_of(
            spec_of(name, self.ttl, options), token, options, is_block
        )
        if request.owner and request.reentrant:
            entered = self.operations.reenter(name, request.owner, token)
            if entered:
                return entered
        answer = await self.follow(self.operations.acquire(request))
        assert not isinstance(answer, Ended | Completed)  # only requests with extras get it
        if isinstance(answer, AsyncLease) and answer.token == token:
            answer.on_stop = options.get("on_stop")
        return answer

    @overload
    def hold(
        self, name: str, *, required: Literal[True] = True, **options: Unpack[AcquireOptions]
    ) -> AbstractAsyncContextManager[AsyncLease]: ...
    @overload
    def hold(
        self, name: str, *, required: bool, **options: Unpack[AcquireOptions]
    ) -> AbstractAsyncContextManager[AsyncLease | None]: ...
    @shows_acquire_options
    @asynccontextmanager
    async def hold(
        self, name: str, *, required: bool = True, **options: Unpack[AcquireOptions]
    ) -> AsyncIterator[Any]:
        """Hold the lock while the block runs; ``as`` gives the lease.

            async with locks.hold("invoice:42", wait=5) as lease:
                await write(invoice, fence=lease.fence)

        ``required``: if False, yield None instead of raising when others hold the lock.
        ``ttl``: seconds that the lock outlives this process; it is renewed while the block runs.
        ``limit``: how many may hold it at once; the same number everywhere.
        ``wait``: seconds to wait for it in line, or "forever"; None or 0: not at all.
        ``at_least``: seconds that it stays taken, counted from the start, if the block is shorter.
        ``reentrant``: let this asyncio task enter again what it holds already.
        ``on_lost``: called with the lease when it is lost while the block runs.
        ``on_stop``: called with the lease when somebody asks its holder to stop.
        ``holder``: who it is that holds it, for those who look; this process by default.

        Raises ``LockConflict`` if others hold it (and the wait is over), ``LeaseLost`` at the end
        of a block that outlived its lease, ``LockUnavailable`` if the lock server gives no usable
        answer, ``LockUsageError`` if an option is wrong, ``LimitMismatch`` if it is held with
        another limit.
        """
        token = new_token()
        lease = await self._try_acquire(name, token, options, is_block=True)
        if isinstance(lease, Conflict):
            if required:
                raise LockConflict(lease)
            yield None
            return
        failed = True
        try:
            yield lease
            failed = False
        finally:
            await run_async(self.operations.exit_hold(lease, failed, token), self._store.perform)

    async def renew(self, lease: AsyncLease, ttl: float | None = None) -> None:
        await run_async(self.operations.renew(lease, ttl), self._store.perform)

    async def release(self, lease: AsyncLease) -> bool:
        return await run_async(self.operations.release(lease), self._store.perform)

    async def info(self, name: str) -> LockInfo | None:
        check_name(name)
        info: LockInfo | None = await self._store.perform(self.commands.info(name))
        return info

    async def holders(self, name: str) -> tuple[Holder, ...]:
        info = await self.info(name)
        return info.holders if info else ()

    async def is_locked(self, name: str, *, max_age: float = 0.0) -> bool:
        """Do as ``Locks.is_locked``."""
        recent = self._recent.get(name, max_age) if max_age else None
        if recent is not None:
            return recent
        read_at = now()
        return self._recent.put(name, read_at, bool(await self.holders(name)))

    async def stop(self, name: str, token: str | None = None) -> tuple[Holder, ...]:
        """Do as ``Locks.stop``."""
        check_name(name)
        call = self.commands.stop(name, token or "", request_id=new_token())
        holders: tuple[Holder, ...] = await self._store.perform(call)
        return holders

    async def active(self, worker: str | None = None) -> list[ActiveRun]:
        """Do as ``Locks.active``."""
        return runs_in(await self.follow(self.operations.walk()), worker)

    async def follow(self, operation: Operation[T]) -> T:
        """Do as ``Locks.follow``."""
        return await run_async(operation, self._store.perform)

    async def close(self) -> None:
        self.operations.close()
        await self._store.close()
