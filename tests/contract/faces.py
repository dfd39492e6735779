"""Both faces behind one set of blocking methods, so that a test body is written once.

`AsyncFace` runs an event loop in a thread of its own. Each thread of a test has one asyncio task
there for as long as the face lives: what is true of threads on the sync face (re-entrance) must be
true of tasks on the async one.
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


class LeaseBackend(Protocol):
    """The verbs of `Locks`, blocking, whatever is behind them."""

    kind: str

    def acquire(self, name: str, **asked: Any) -> Any: ...
    def try_acquire(self, name: str, **asked: Any) -> BaseLease | Conflict: ...
    def hold(self, name: str, **asked: Any) -> Any: ...
    def renew(self, lease: Any, ttl: float | None = None) -> None: ...
    def release(self, lease: Any) -> bool: ...
    def info(self, name: str) -> LockInfo | None: ...
    def holders(self, name: str) -> tuple[Holder, ...]: ...
    def is_locked(self, name: str) -> bool: ...
    def close(self) -> None: ...


class SyncFace:
    kind = "sync"

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._locks, verb)

    def renew(self, lease: Any, ttl: float | None = None) -> None:
        lease.renew(ttl)

    def release(self, lease: Any) -> bool:
        released: bool = lease.release()
        return released


class AsyncFace:
    kind = "async"

    def __init__(self, make: Callable[[], AsyncLocks]) -> None:
        self._loop = asyncio.new_event_loop()
        self._mine = threading.local()
        self._tasks: list[asyncio.Queue[Job | None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="async face")
        self._thread.start()
        try:
            self._locks = self._run(_as_coroutine(make))
        except BaseException:
            self._end()
            raise

    def acquire(self, name: str, **asked: Any) -> Any:
        return self._run(lambda: self._locks.acquire(name, **asked))

    def try_acquire(self, name: str, **asked: Any) -> Any:
        return self._run(lambda: self._locks.try_acquire(name, **asked))

    @contextmanager
    def hold(self, name: str, **asked: Any) -> Iterator[Any]:
        manager: Any = self._locks.hold(name, **asked)
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
        """Do it in the asyncio task that belongs to this thread."""
        if not hasattr(self._mine, "jobs"):
            self._mine.jobs = asyncio.Queue()
            self._tasks.append(self._mine.jobs)
            asyncio.run_coroutine_threadsafe(_work(self._mine.jobs), self._loop)
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._mine.jobs.put_nowait, (job, done))
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
