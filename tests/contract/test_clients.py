"""Every kind of client works the same: its address and credentials are used."""

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_locks import AsyncLocks, Conflict, Locks, LockUsageError
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.redis_store import RedisStore
from tests.contract.apis import AsyncApi, LocksApi, SyncApi
from tests.contract.test_queue import in_line

Fixture = Callable[[str], Any]


def single(get: Fixture, module: Any, **options: Any) -> Any:
    server = get("valkey")
    return module.Redis(host=server.host, port=server.port, **options)


def from_pool(get: Fixture, module: Any, **options: Any) -> Any:
    return module.Redis.from_url(get("valkey").url, **options)


def over_sentinel(get: Fixture, module: Any, **options: Any) -> Any:
    trio = get("sentinel")
    watchers = module.sentinel.Sentinel([(s.host, s.port) for s in trio.sentinels], **options)
    return watchers.master_for(trio.name)


def over_cluster(get: Fixture, module: Any, **options: Any) -> Any:
    node = get("cluster").primaries[0]
    return module.cluster.RedisCluster(host=node.host, port=node.port, **options)


MAKERS = [single, from_pool, over_sentinel, over_cluster]


def check_lock_lifecycle(api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]) -> None:
    """Acquire a lock, be refused, wait for it, renew it, read it and release it."""
    lease = api.acquire("client", ttl=20)
    assert isinstance(other.try_acquire("client"), Conflict)
    waiter = in_thread(other.acquire, "client", wait=20)
    in_line(api, "client", 1)
    api.renew(lease, 30)
    info = api.info("client")
    assert info
    assert info.holders[0].token == lease.token
    assert api.release(lease) is True
    assert other.release(waiter.result(timeout=20)) is True
    assert not api.is_locked("client")


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_sync_client(
    request: pytest.FixtureRequest,
    in_thread: Callable[..., Any],
    make: Callable[..., Any],
    decode: bool,
) -> None:
    client = make(request.getfixturevalue, redis, decode_responses=decode, protocol=3)
    first, second = Locks.from_client(client, prefix="clients"), Locks(client, prefix="clients")
    try:
        check_lock_lifecycle(SyncApi(first), SyncApi(second), in_thread)
    finally:
        first.close()
        second.close()
        client.close()


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_async_client(
    request: pytest.FixtureRequest,
    in_thread: Callable[..., Any],
    make: Callable[..., Any],
    decode: bool,
) -> None:
    client = make(request.getfixturevalue, redis.asyncio, decode_responses=decode)
    first = AsyncApi(lambda: AsyncLocks.from_client(client, prefix="clients"))
    second = AsyncApi(lambda: AsyncLocks(client, prefix="clients"))
    try:
        check_lock_lifecycle(first, second, in_thread)
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
def test_fake_client(in_thread: Callable[..., Any], decode: bool) -> None:
    server = fakeredis.FakeServer()
    client = fakeredis.FakeRedis(server=server, decode_responses=decode)
    check_lock_lifecycle(SyncApi(Locks(client)), SyncApi(Locks.from_client(client)), in_thread)


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
def test_fake_async_client(in_thread: Callable[..., Any], decode: bool) -> None:
    server = fakeredis.FakeServer()

    def make() -> AsyncLocks:
        return AsyncLocks(
            fakeredis.FakeAsyncRedis(server=server, decode_responses=decode),
            renewer_client=fakeredis.FakeRedis(server=server, decode_responses=decode),
        )

    first, second = AsyncApi(make), AsyncApi(make)
    try:
        check_lock_lifecycle(first, second, in_thread)
    finally:
        first.close()
        second.close()


def test_fake_async_client_needs_a_client_for_the_renewer() -> None:
    """Without it no lease would be renewed: each would lapse without any sign."""
    with pytest.raises(LockUsageError, match="renewer_client"):
        AsyncLocks(fakeredis.FakeAsyncRedis())


def test_sync_and_async_share_the_locks(valkey: Any) -> None:
    sync = SyncApi(Locks.from_url(valkey.url, prefix="shared"))
    awaited = AsyncApi(lambda: AsyncLocks.from_url(valkey.url, prefix="shared"))
    try:
        lease = sync.acquire("a")
        assert awaited.acquire("a") is None
        assert sync.release(lease) is True
        assert awaited.release(awaited.acquire("a")) is True
    finally:
        awaited.close()
        sync.close()


def test_database_of_the_client_is_used(valkey: Any) -> None:
    client = valkey.client(db=3)
    locks = Locks(client, prefix="dbs")
    lease = locks.acquire("a")
    assert lease
    assert client.exists("dbs:{0}:h:a")
    assert not Locks.from_url(valkey.url, prefix="dbs").is_locked("a")
    lease.release()
    locks.close()
    client.close()


def test_cluster_spreads_its_locks(cluster: Any) -> None:
    locks = Locks.from_url(cluster.url, prefix="spread")
    assert len(locks.commands.roots) == 16
    owners = {cluster.owner_of(root).port for root in locks.commands.roots}
    assert owners == {node.port for node in cluster.primaries}
    leases = [locks.acquire(f"n{i}") for i in range(40)]
    for node in cluster.primaries:
        keys = node.ask("KEYS", "spread:*h:*")
        assert keys, f"no lock lives on {node}"
    assert all(lease and lease.release() for lease in leases)
    locks.close()


def test_clients_own_retries_and_timeouts_are_not_taken_over(valkey: Any) -> None:
    client = valkey.client(socket_timeout=77, retry=Retry(NoBackoff(), 9))
    store = RedisStore.from_client(client, "x")
    assert "socket_timeout" not in store.server.kwargs
    assert "retry" not in store.server.kwargs
    client.close()


def test_layout_is_checked_where_it_is_written(valkey: Any) -> None:
    with pytest.raises(LockUsageError, match="prefix"):
        Locks.from_url(valkey.url, prefix="a{b}")
    with pytest.raises(LockUsageError, match="shards"):
        Locks.from_url(valkey.url, shards=0)
    with pytest.raises(LockUsageError, match="ttl"):
        Locks.from_url(valkey.url, ttl=0.5)
    with pytest.raises(LockUsageError, match="redis-py client"):
        Locks(object())
    assert len(LockCommands("x", 3).roots) == 3
