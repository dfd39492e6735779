"""Locks: the locks for blocking code. It runs the operations of ``operations.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from celery_locks import settings
from celery_locks.core.lease import Lease
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
from celery_locks.store.effects import Call, Operation, Store, run_sync
from celery_locks.store.redis_store import RedisStore
from celery_locks.types import DEFAULT_PREFIX, ActiveRun, Conflict, Holder, LockInfo
from celery_locks.validation import Wait

T = TypeVar("T")


class Locks:
    """Named locks on one server, for code that blocks. Safe to share between threads.

    ``Locks(client)`` takes a redis-py client of any kind; ``Locks.from_url`` makes its own.
    Connections are opened when first needed. The client's timeouts and retries have no effect: no
    call takes longer than a third of the ttl.
    """

    def __init__(self, client: Any, **layout: Unpack[Layout]) -> None:
        prefix = layout.get("prefix", DEFAULT_PREFIX)
        self._setup(RedisStore.from_client(client, prefix), layout)

    def _setup(self, store: RedisStore, layout: Layout) -> None:
        self._store = store
        self.commands, self.ttl = layout_of(store, layout)
        # For layers above, such as ``integration`` and ``recipes``, that do more in the same call.
        self.operations = Operations(self, Lease, store, self.commands)
        self.queries = Queries(self.commands)
        self.rates = RateOperations(self.commands)

    @classmethod
    def from_url(cls, url: str, **layout: Unpack[Layout]) -> Self:
        """Return locks on the server at this URL; the options are those of ``Layout``."""
        locks = cls.__new__(cls)
        locks._setup(RedisStore.from_url(url, layout.get("prefix", DEFAULT_PREFIX)), layout)
        return locks

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """Return the locks that a Celery app's tasks use; see ``settings.py``."""
        values = settings.of(app)
        layout: Layout = {
            "prefix": values.prefix,
            "guard_after_loss": values.guard_after_loss,
        }
        if values.shards is not None:
            layout["shards"] = values.shards
        if "ttl" in values.task:
            layout["ttl"] = values.task["ttl"]
        locks = cls.__new__(cls)
        locks._setup(RedisStore.from_url(values.url, values.prefix, values.url_options), layout)
        return locks

    @classmethod
    def from_client(cls, client: Any, **layout: Unpack[Layout]) -> Self:
        return cls(client, **layout)

    @property
    def server(self) -> tuple[str, int]:
        """The address and the database of the lock server, without credentials."""
        server = self._store.server
        return server.address, int(server.kwargs.get("db") or 0)

    @shows_acquire_options
    def acquire(self, name: str, *more: str, **options: Unpack[AcquireOptions]) -> Lease | None:
        """Acquire a lock: return a lease, renewed until it is released; None if others hold it.

        ``lease.release()`` releases it; if this process dies, it lapses after ``ttl``. Prefer
        ``hold``, which cannot forget the release. The options are those of ``hold``.

        Raises ``LockUnavailable`` if the lock server gives no usable answer, ``LockUsageError`` if
        an option is wrong.

            lease = locks.acquire("report:2024", wait=5)
            if lease is None:
                return "somebody else writes the report"
        """
        token = new_token()
        try:
            answer = self.run(
                self.operations.acquire_by_name((name, *more), token, self.ttl, options)
            )
            return None if isinstance(answer, Conflict) else answer
        except BaseException:
            # A signal handler may raise between the grant and our return.
            self.operations.release_if_acquired(token)
            raise

    @shows_acquire_options
    def try_acquire(
        self, name: str, *more: str, **options: Unpack[AcquireOptions]
    ) -> Lease | Conflict:
        """Do as ``acquire``, but return a ``Conflict`` that names the holders if others hold it."""
        token = new_token()
        try:
            return self.run(
                self.operations.acquire_by_name((name, *more), token, self.ttl, options)
            )
        except BaseException:
            self.operations.release_if_acquired(token)  # see acquire
            raise

    @overload
    def hold(
        self,
        name: str,
        *more: str,
        required: Literal[True] = True,
        **options: Unpack[AcquireOptions],
    ) -> AbstractContextManager[Lease]: ...
    @overload
    def hold(
        self, name: str, *more: str, required: bool, **options: Unpack[AcquireOptions]
    ) -> AbstractContextManager[Lease | None]: ...
    @shows_acquire_options
    @contextmanager
    def hold(
        self, name: str, *more: str, required: bool = True, **options: Unpack[AcquireOptions]
    ) -> Iterator[Any]:
        """Hold the lock while the block runs; ``as`` gives the lease.

            with locks.hold("invoice:42", wait=5) as lease:
                write(invoice, fence=lease.fence)

        With several names it acquires all of them or none, and ``lease.fences`` has each fence.

        ``required``: if False, yield None instead of raising when others hold the lock.
        ``ttl``: seconds that the lock outlives this process; it is renewed while the block runs.
        ``limit``: how many may hold it at once. Use the same number everywhere: a caller is granted
        a slot if fewer than its own limit hold the lock and nobody waits. An operator's limit wins.
        For several names it may be a list.
        ``shared``: any number of callers with ``shared=True`` hold it at once, and nobody else.
        ``wait``: seconds to wait for it in line, or "forever"; None or 0: not at all.
        ``at_least``: seconds that it stays taken, counted from the start, if the block is shorter.
        ``reentrant``: let this thread enter again what it holds already.
        ``on_lost``: called with the lease when it is lost while the block runs.
        ``on_stop``: called with the lease when somebody asks its holder to stop.
        ``holder``: the holder that others see; by default this process or the running task.

        Raises ``LockConflict`` if others hold it (and the wait is over), ``LeaseLost`` at the end
        of a block that outlived its lease, ``LockUnavailable`` if the lock server gives no usable
        answer, ``LockUsageError`` if an option is wrong.
        """
        token = new_token()
        try:
            lease = self.run(
                self.operations.enter_hold((name, *more), token, self.ttl, options, required)
            )
            failed = True
            try:
                yield lease
                failed = False
            finally:
                self.run(self.operations.exit_hold(lease, failed, token))
        except BaseException:
            # A signal handler may raise anywhere, also just before the block or at its end.
            self.operations.release_if_acquired(token)
            raise

    def renew(self, lease: Lease, ttl: float | None = None) -> None:
        """Renew now; ``LeaseLost`` if it is no longer ours. The renewer does this by itself."""
        self.run(self.operations.renew(lease, ttl))

    def release(self, lease: Lease) -> bool:
        """Release it; return True if it was ours until now."""
        return self.run(self.operations.release_entry(lease))

    def info(self, name: str) -> LockInfo | None:
        """Return a lock's holders, waiters, pause and limit; None if it has none of these."""
        return self.run(self.queries.info(name))

    def holders(self, name: str) -> tuple[Holder, ...]:
        return self.run(self.queries.holders(name))

    def is_locked(self, name: str, *, max_age: float = 0.0) -> bool:
        """Return True if anybody holds it now; with a limit, if at least one does.

        With ``max_age`` the answer may be that many seconds old and then needs no round trip: for
        hot paths, from a cache of this object that nothing refreshes but its age.
        """
        return self.run(self.queries.is_locked(name, max_age))

    def stop(self, name: str, token: str | None = None) -> tuple[Holder, ...]:
        """Ask the holders of a lock, or the one with ``token``, to stop; return those asked.

        Each learns of it at its next renewal, within a third of its ttl, as ``StopRequested``: from
        ``lease.check()``, through ``on_stop``, or raised in a task with ``on_stop="raise"``. It
        keeps the lock until it ends; ``admin.force_release`` takes the lock away.
        """
        return self.run(self.operations.stop(name, token))

    def throttle(
        self,
        key: str,
        rate: str | Sequence[str],
        *,
        wait: Wait | None = None,
        burst: int = 1,
        cost: float = 1,
    ) -> None:
        """Return when it is the caller's turn at this rate, such as "30/m" (s, m, h or d).

            locks.throttle("api:7", "30/m", wait=5)
            call_the_api()

        All callers and tasks that use the rate ``key`` share it. ``wait``: seconds of patience, or
        "forever"; the caller is promised its turn and sleeps until then. ``burst``: how many may
        start at once after a pause. ``cost``: how many starts this one counts for.

        Raises ``RateLimited`` if its turn does not come within ``wait``; nothing is consumed, and
        ``retry_after`` says when to try again. Callers with a promise who start late may make the
        wait up to a second longer. Raises ``LockUnavailable`` and ``LockUsageError`` as ``hold``.
        """
        self.run(self.rates.throttle(key, Rate.parse(rate, burst, cost), wait))

    def push_back(self, key: str, seconds: float) -> None:
        """Let nothing start at the rate ``key`` for some seconds, as after an answer 429."""
        self.run(self.rates.push_back(key, seconds))

    def active(self, worker: str | None = None) -> list[ActiveRun]:
        """Return what runs under a lock now, on this worker or host only if one is named."""
        return self.run(self.queries.active(worker))

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end; for the layers above, such as ``recipes``."""
        return run_sync(operation, self._store.perform)

    def perform(self, call: Call) -> Any:
        """Send one call of ``self.commands``; for the layers above, such as ``admin``."""
        return self._store.perform(call)

    def store_for_thread(self) -> Store:
        """Return a store with connections of its own, for a further native thread."""
        return self._store.store_for_thread().store_for_thread()

    def close(self) -> None:
        """Close idle connections; held locks stay held and renewed."""
        self.operations.close()
        self._store.close()
