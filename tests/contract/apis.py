"""The sync and the async API behind the same blocking methods: a test body is written once.

`AsyncApi` runs an event loop in its own thread. Each thread of a test has one asyncio task in it,
until the API is closed: what holds for threads in the sync API (re-entrance) must hold for tasks in
the async one.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from celery_locks import AsyncLocks, Conflict, Holder, LockInfo, Locks
from celery_locks.core.lease import BaseLease

Job = tuple[Callable[[], Awaitable[Any]], Future[Any]]


class LocksApi(Protocol):
    """The methods of `Locks`; they block in both APIs."""

    kind: str

    def acquire(self, *names: str, **options: Any) -> Any: ...
    def try_acquire(self, *names: str, **options: Any) -> BaseLease | Conflict: ...
    def hold(self, *names: str, **options: Any) -> Any: ...
    def renew(self, lease: Any, ttl: float | None = None) -> None: ...
    def release(self, lease: Any) -> bool: ...
    def info(self, name: str) -> LockInfo | None: ...
    def holders(self, name: str) -> tuple[Holder, ...]: ...
    def is_locked(self, name: str) -> bool: ...
    def throttle(self, key: str, rate: Any, **options: Any) -> None: ...
    def push_back(self, key: str, seconds: float) -> None: ...
    def close(self) -> None: ...


class SyncApi:
    """`Locks` with the two methods that `AsyncLocks` has elsewhere."""

    kind = "sync"

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def __getattr__(self, method: str) -> Any:
        return getattr(self._locks, method)

    def renew(self, lease: Any, ttl: float | None = None) -> None:
        lease.renew(ttl)

    def release(self, lease: Any) -> bool:
        released: bool = lease.release()
        return released


class AsyncApi:
    """`AsyncLocks`, run in an event loop of its own thread."""

    kind = "async"

    def __init__(self, make: Callable[[], AsyncLocks]) -> None:
        self._loop = asyncio.new_event_loop()
        self._local = threading.local()
        self._tasks: list[asyncio.Queue[Job | None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="async api")
        self._thread.start()
        try:
            self._locks = self._run(_as_coroutine(make))
        except BaseException:
            self._end()
            raise

    def acquire(self, *names: str, **options: Any) -> Any:
        return self._run(lambda: self._locks.acquire(*names, **options))

    def try_acquire(self, *names: str, **options: Any) -> Any:
        return self._run(lambda: self._locks.try_acquire(*names, **options))

    @contextmanager
    def hold(self, *names: str, **options: Any) -> Iterator[Any]:
        manager: Any = self._locks.hold(*names, **options)
        lease = self._run(manager.__aenter__)
        try:
            yield lease
        except BaseException as error:
            raised = error
            if not self._run(lambda: manager.__aexit__(type(raised), raised, None)):
                raise
        else:
            self._run(lambda: manager.__aexit__(None, None, None))

    def renew(self, lease: Any, ttl: float | None = None) -> None:
        self._run(lambda: lease.renew(ttl))

    def release(self, lease: Any) -> Any:
        return self._run(lease.release)

    def info(self, name: str) -> Any:
        return self._run(lambda: self._locks.info(name))

    def holders(self, name: str) -> Any:
        return self._run(lambda: self._locks.holders(name))

    def is_locked(self, name: str) -> Any:
        return self._run(lambda: self._locks.is_locked(name))

    def throttle(self, key: str, rate: Any, **options: Any) -> None:
        self._run(lambda: self._locks.throttle(key, rate, **options))

    def push_back(self, key: str, seconds: float) -> None:
        self._run(lambda: self._locks.push_back(key, seconds))

    def close(self) -> None:
        self._run(lambda: self._locks.close())
        self._end()

    def _end(self) -> None:
        for jobs in self._tasks:
            self._loop.call_soon_threadsafe(jobs.put_nowait, None)
        self._loop.call_soon_threadsafe(self._loop.create_task, self._stop())
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()

    def _run(self, job: Callable[[], Awaitable[Any]]) -> Any:
        """Run it in the asyncio task that belongs to this thread."""
        if not hasattr(self._local, "jobs"):
            self._local.jobs = asyncio.Queue()
            self._tasks.append(self._local.jobs)
            asyncio.run_coroutine_threadsafe(_work(self._local.jobs), self._loop)
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._local.jobs.put_nowait, (job, done))
        return done.result(timeout=60)


async def _work(jobs: "asyncio.Queue[Job | None]") -> None:
    while entry := await jobs.get():
        job, done = entry
        try:
            result = await job()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)


def _as_coroutine(make: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def made() -> Any:
        return make()

    return made
