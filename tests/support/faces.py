"""Both faces of the locks behind one set of blocking verbs, so that one test speaks for both."""

import asyncio
from typing import Any

from celery_locks import AsyncLease, AsyncLocks, Lease, LockInfo, Locks


class SyncFace:
    """``Locks`` as it is."""

    def __init__(self, url: str, **layout: Any) -> None:
        self.locks = Locks.from_url(url, **layout)

    def acquire(self, name: str, **asked: Any) -> Lease | None:
        return self.locks.acquire(name, **asked)

    def renew(self, lease: Any, ttl: float | None = None) -> None:
        lease.renew(ttl)

    def release(self, lease: Any) -> bool:
        return lease.release()

    def info(self, name: str) -> LockInfo | None:
        return self.locks.info(name)

    def close(self) -> None:
        self.locks.close()


class AsyncFace:
    """``AsyncLocks`` in a loop that runs during a verb only; the keeper needs none."""

    def __init__(self, url: str, **layout: Any) -> None:
        self.locks = AsyncLocks.from_url(url, **layout)
        self._runner = asyncio.Runner()

    def acquire(self, name: str, **asked: Any) -> AsyncLease | None:
        return self._runner.run(self.locks.acquire(name, **asked))

    def renew(self, lease: Any, ttl: float | None = None) -> None:
        self._runner.run(self.locks.renew(lease, ttl))

    def release(self, lease: Any) -> bool:
        return self._runner.run(self.locks.release(lease))

    def info(self, name: str) -> LockInfo | None:
        return self._runner.run(self.locks.info(name))

    def close(self) -> None:
        self._runner.run(self.locks.close())
        self._runner.close()


LeaseBackend = SyncFace | AsyncFace
FACES: dict[str, type[SyncFace] | type[AsyncFace]] = {"sync": SyncFace, "async": AsyncFace}
