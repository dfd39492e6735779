"""Every store that the contract covers, and what a test may do to it without the locks.

A backend gives each test its own prefix, so the servers are shared and never flushed.
"""

import asyncio
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import Any

import fakeredis
import redis

from celery_locks import AsyncLocks, Locks
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.redis_store import RedisStore
from tests.contract.apis import AsyncApi, LocksApi, SyncApi
from tests.servers.embedded import EmbeddedServer
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support import acl, declared_keys

BACKENDS = ["valkey", "redis_server", "fakeredis", "cluster", "sentinel", "acl"]
if os.environ.get("CELERY_LOCKS_TEST_URL"):
    BACKENDS.append("external")


class Backend:
    """One server with a prefix for this test; `raw` is a plain client for looking at the keys."""

    wakes = True  # whether a waiter is woken by a message, not by polling

    def __init__(self, raw: Any, url: str = "") -> None:
        self.raw = raw
        self.url = url
        self.prefix = f"t-{uuid.uuid4().hex[:12]}"
        self._apis: list[Any] = []

    def locks(self, **layout: Any) -> Locks:
        """Return sync locks, for what `LocksApi` does not have (`admin`, `commands`)."""
        return self._closing(Locks.from_url(self.url, prefix=self.prefix, **layout))

    def async_locks(self, **layout: Any) -> AsyncLocks:
        return AsyncLocks.from_url(self.url, prefix=self.prefix, **layout)

    def api(self, kind: str, **layout: Any) -> LocksApi:
        if kind == "sync":
            return SyncApi(self.locks(**layout))
        return self._closing(AsyncApi(lambda: self.async_locks(**layout)))

    def _closing(self, made: Any) -> Any:
        self._apis.append(made)
        return made

    def commands(self) -> LockCommands:
        return self.locks().commands

    def key(self, kind: str, name: str = "") -> str:
        """Return the redis key of one kind (`h:`, `q:`, `index` …) in the shard of a lock."""
        part = kind + name if kind in ("h:", "q:") else kind
        return self.commands().root(name) + part

    def keys(self, *, past: bool = False) -> set[str]:
        """Return the keys of this test, without their root.

        Keys of past holds are included only with `past`: on a slow machine any hold may take a
        second. The epoch, which every acquire by a process leaves, is not (test_guard.py).
        """
        names = {key.decode().split("}:", 1)[1] for key in self._lasting()} - {"epoch"}
        return names if past else names - {"past", "usual"}

    def _lasting(self) -> list[bytes]:
        """Leave out saved replies (p:) and waiting owners (w:): these expire by themselves."""
        found = self._scan(f"{self.prefix}:*")
        return [key for key in found if not re.search(b"}:[pw]:", key)]

    def _scan(self, match: str) -> Iterable[bytes]:
        return list(self.raw.scan_iter(match=match, count=1000))

    def content(self) -> dict[bytes, Any]:
        """Return what this test stored, to compare before and after; without fence and logs."""
        readers = {
            b"zset": lambda key: self.raw.zrange(key, 0, -1, withscores=True),
            b"hash": self.raw.hgetall,
            b"string": self.raw.get,
        }
        apart = (b"}:fence", b"}:epoch", b"}:past", b"}:usual", b"}:log")
        found = [key for key in self._lasting() if not key.endswith(apart)]
        return {key: readers[self.raw.type(key)](key) for key in found}

    def lapse(self, name: str, token: str, ago: float = 1.0) -> None:
        """Pretend that the holder stopped renewing: the lease lapsed `ago` seconds ago."""
        renewer.discard(token)
        self.raw.zadd(self.key("h:", name), {token: (time.time() - ago) * 1000})

    def wipe(self) -> None:
        """Delete all data, as a restart without persistence does."""
        self.raw.flushall()

    def script_flush(self) -> None:
        self.raw.script_flush()

    def close(self) -> None:
        for api in self._apis:
            api.close()
        self.raw.close()


class CheckedBackend(Backend):
    """A server whose scripts note every key that they touch and do not declare."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.client(), server.url)
        self._undeclared: list[str] = []
        self._checks = ExitStack()
        self._checks.enter_context(declared_keys.checked())

    def wipe(self) -> None:
        self._undeclared += declared_keys.undeclared(self.raw)
        super().wipe()

    def close(self) -> None:
        self._checks.close()
        found = [*self._undeclared, *declared_keys.undeclared(self.raw)]
        super().close()
        assert found == [], "a script touches a key that is not in its KEYS"


class ClusterBackend(Backend):
    """A Cluster, whose keys are on several nodes."""

    def _scan(self, match: str) -> Iterable[bytes]:
        return list(self.raw.scan_iter(match=match, count=1000, target_nodes="primaries"))

    def wipe(self) -> None:
        self.raw.flushall(target_nodes="primaries")


class ExternalBackend(Backend):
    """A server with data of others: only our own keys are ever deleted."""

    def wipe(self) -> None:
        for key in self._scan(f"{self.prefix}*"):
            self.raw.delete(key)

    def close(self) -> None:
        self.wipe()
        super().close()


class FakeBackend(Backend):
    """fakeredis, in this process."""

    wakes = False

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        super().__init__(self.client())

    def client(self, **options: Any) -> Any:
        return fakeredis.FakeRedis(server=self.server, **options)

    def async_client(self, **options: Any) -> Any:
        return fakeredis.FakeAsyncRedis(server=self.server, **options)

    def locks(self, **layout: Any) -> Locks:
        return self._closing(Locks(self.client(), prefix=self.prefix, **layout))

    def async_locks(self, **layout: Any) -> AsyncLocks:
        return AsyncLocks(
            self.async_client(), renewer_client=self.client(), prefix=self.prefix, **layout
        )


class AclBackend(Backend):
    """A server with the restricted user of docs/operations/security.md; `raw` may do everything."""

    # What an application adds for the lists that it drains.
    lists = ("~*:temp_messages:*", "~{*}:celery-locks:drained:*", "~x}:*", "~{}x:*")

    def __init__(self, server: EmbeddedServer) -> None:
        login = f"locks:{acl.PASSWORD}"
        super().__init__(server.client(), f"redis://{login}@{server.host}:{server.port}/0")
        self.prefix = f"celery-locks:{self.prefix}"
        acl.add_user(self.raw, "locks", *self.lists)
        self.raw.execute_command("ACL", "LOG", "RESET")

    def close(self) -> None:
        refused = acl.refused(self.raw)
        super().close()
        assert refused == [], "the permissions in docs/operations/security.md do not suffice"


def make_backend(name: str, fixture: Callable[[str], Any]) -> Backend:
    """Make a backend; `fixture` starts its server on first use (`request.getfixturevalue`)."""
    if name == "fakeredis":
        return FakeBackend()
    if name == "external":
        url: str = fixture("external_url")
        return ExternalBackend(redis.Redis.from_url(url), url)
    if name == "acl":
        return AclBackend(fixture("valkey"))
    server: Any = fixture(name)
    if isinstance(server, EmbeddedCluster):
        return ClusterBackend(server.client(), server.url)
    if isinstance(server, EmbeddedSentinel):
        return Backend(server.primary.client(), server.url)
    assert isinstance(server, EmbeddedServer)
    if name == "valkey":
        return CheckedBackend(server)
    # The other servers speak RESP2: so both protocols keep the contract.
    return Backend(server.client(), f"{server.url}?protocol=3")


def store_of(locks: Locks) -> RedisStore:
    store = locks._store
    assert isinstance(store, RedisStore)
    return store


def in_loop(backend: Backend, test: Callable[[AsyncLocks], Awaitable[None]]) -> None:
    async def run() -> None:
        locks = backend.async_locks()
        try:
            await test(locks)
        finally:
            await locks.close()

    asyncio.run(run())
