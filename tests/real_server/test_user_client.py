"""What a user's own client says holds: its class, hooks, credentials, protocol and limit."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_locks import AsyncLocks, Locks, LockUnavailable
from celery_locks.clock import now
from celery_locks.store.connect_errors import ConnectionFailed, Reply
from celery_locks.store.connection_pool import ConnectionPool
from celery_locks.store.drivers import BlockingDriver, run_blocking
from celery_locks.store.scripts import pack
from celery_locks.store.url import from_url
from tests.servers.embedded import EmbeddedServer
from tests.support.news import at_most
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


class CountingConnection(redis.Connection):
    """A user's own class, with an argument of its own; it counts what goes through it."""

    def __init__(self, *, counts: dict[str, int], **kwargs: Any) -> None:
        self.counts = counts
        super().__init__(**kwargs)

    def connect(self) -> None:
        self.counts["connect"] = self.counts.get("connect", 0) + 1
        super().connect()

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        self.counts["read"] = self.counts.get("read", 0) + 1
        return super().read_response(*args, **kwargs)


class BlockingPool(ConnectionPool):
    """The pool of a blocking store, alone."""

    def __init__(self, url: str, limit: int = 0) -> None:
        server = from_url(url)
        super().__init__(BlockingDriver(), server, server.addresses[0], limit)

    def ask(self, data: bytes, deadline: float) -> Reply:
        return run_blocking(self.exchange, data, deadline)

    def close_all(self) -> None:
        run_blocking(self.close)


class RotatingProvider(redis.CredentialProvider):
    def __init__(self) -> None:
        self.password = "first"

    def get_credentials(self) -> tuple[str, str]:
        return "app", self.password


def take_and_wait(locks: Locks) -> None:
    """Acquire, renew, wait and release: calls, the renewing thread and a subscription connect."""
    with locks.hold("a", ttl=1.5) as lease, ThreadPoolExecutor() as threads:
        assert threads.submit(locks.acquire, "a", wait=0.1).result(20) is None
        wait_until(lambda: lease.renewals > 0)
    assert not locks.is_locked("a")


def test_connection_class_is_used(server: EmbeddedServer) -> None:
    """A class may log, trace or tunnel: every byte of ours goes through it too."""
    counts: dict[str, int] = {}
    pool = redis.ConnectionPool(
        connection_class=CountingConnection, counts=counts, host=server.host, port=server.port
    )
    locks = Locks(redis.Redis(connection_pool=pool))
    take_and_wait(locks)
    locks.close()
    assert counts["connect"] >= 3
    assert counts["read"] >= 4


@pytest.mark.parametrize("asyncio", [False, True])
async def test_connect_hook_is_called(server: EmbeddedServer, asyncio: bool) -> None:
    """It may log in in a way that redis-py does not know, and give the connection its name."""

    def hook(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("CLIENT", "SETNAME", "by-the-hook")
        connection.read_response()

    async def async_hook(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("CLIENT", "SETNAME", "by-the-hook")
        await connection.read_response()

    if asyncio:
        client: Any = redis.asyncio.Redis(port=server.port, redis_connect_func=async_hook)
        awaited = AsyncLocks(client)
        lease = await awaited.acquire("a")
    else:
        client = redis.Redis(port=server.port, redis_connect_func=hook)
        locks = Locks(client)
        assert locks.acquire("a")
    with server.client() as control:
        assert "by-the-hook" in [entry["name"] for entry in control.client_list()]
    if asyncio:
        assert lease
        await lease.release()
        await awaited.close()
    else:
        locks.close()


def test_rotated_credentials_are_fetched_again(server: EmbeddedServer) -> None:
    """The user's password changes, and the connections that used the old one are closed."""

    def set_password(password: str) -> None:
        with server.client() as control:
            control.acl_setuser(
                "app", enabled=True, reset_passwords=True, passwords=[f"+{password}"],
                keys=["*"], channels=["*"], commands=["+@all"],
            )  # fmt: skip
            for entry in control.client_list():
                if entry["user"] == "app":
                    control.client_kill_filter(_id=entry["id"])

    provider = RotatingProvider()
    set_password(provider.password)
    client = redis.Redis(host=server.host, port=server.port, credential_provider=provider)
    locks = Locks(client)
    lease = locks.acquire("a", ttl=3)
    assert lease
    provider.password = "second"
    set_password(provider.password)
    assert lease.release()
    locks.close()


def test_connection_that_lost_its_login_is_replaced(server: EmbeddedServer) -> None:
    """NOAUTH on a connection that was idle says nothing about the credentials of today."""
    with server.client() as control:
        control.acl_setuser(
            "app", enabled=True, passwords=["+first"],
            keys=["*"], channels=["*"], commands=["+@all"],
        )  # fmt: skip
        control.config_set("requirepass", "other")
    pool = BlockingPool(f"redis://app:first@{server.host}:{server.port}")
    assert pool.ask(pack("PING"), now() + 5) == b"PONG"
    pool.ask(pack("RESET"), now() + 5)  # logs out
    assert pool.ask(pack("PING"), now() + 5) == b"PONG"
    pool.close_all()
    with server.client(password="other") as control:
        control.config_set("requirepass", "")


def test_limit_of_the_pool_holds(server: EmbeddedServer) -> None:
    """Forty threads share three connections: one for calls, one to renew, one to subscribe."""
    client = redis.Redis(host=server.host, port=server.port, max_connections=3)
    locks = Locks(client)
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        with server.client() as control:
            while not done.wait(0.01):
                seen.append(len(control.client_list()) - 1)

    def work(number: int) -> None:
        for _ in range(5):
            with locks.hold(f"own{number}", ttl=10):
                pass
            with locks.hold("shared", ttl=10, wait=60):
                time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(40) as pool:
            for job in [pool.submit(work, number) for number in range(40)]:
                job.result(120)
    finally:
        done.set()
        watcher.join()
    assert max(seen) <= 3
    locks.close()


def test_caller_at_the_limit_waits_until_its_deadline_only(proxy: Proxy) -> None:
    """Whoever finds all connections in use is told in time, and says why."""
    pool = BlockingPool(proxy.url, limit=1)
    assert pool.ask(pack("PING"), now() + 5) == b"PONG"
    proxy.black_hole()
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(pool.ask, pack("PING"), now() + 2)
        wait_until(lambda: not pool._idle)
        with at_most(0.3), pytest.raises(ConnectionFailed, match="max_connections"):
            pool.ask(pack("PING"), now() + 0.3)
        with pytest.raises(ConnectionFailed):
            slow.result(10)
    proxy.pass_through()
    assert pool.ask(pack("PING"), now() + 5) == b"PONG"
    pool.close_all()


@pytest.mark.parametrize("limit", [1, 2])
def test_waiters_poll_where_no_connection_is_left_to_subscribe(
    server: EmbeddedServer, limit: int
) -> None:
    client = redis.Redis(host=server.host, port=server.port, max_connections=limit)
    locks = Locks(client)
    take_and_wait(locks)
    held = locks.acquire("b", ttl=30)
    assert held
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(locks.acquire, "b", wait=20)
        wait_until(lambda: (info := locks.info("b")) and info.waiters)
        assert held.release()
        assert waiter.result(20)
    locks.close()


def protocols(server: EmbeddedServer, name: str) -> set[str]:
    """The protocols that connections of this client name speak."""
    with server.client() as control:
        return {entry["resp"] for entry in control.client_list() if entry["name"] == name}


@pytest.mark.parametrize("protocol", [None, 2, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_protocol_of_the_client_is_spoken(
    server: EmbeddedServer, protocol: int | None, decode: bool
) -> None:
    """Calls, renewal and subscription speak it, and read the same from it."""
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": decode}
    locks = Locks(redis.Redis(port=server.port, client_name="ours", **options))
    take_and_wait(locks)
    hand_over(locks)
    assert protocols(server, "ours") == {str(protocol or 2)}
    locks.close()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
async def test_protocol_of_the_client_is_spoken_when_awaited(
    server: EmbeddedServer, protocol: int, decode: bool
) -> None:
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": decode}
    locks = AsyncLocks(redis.asyncio.Redis(port=server.port, client_name="ours", **options))
    held = await locks.acquire("a", ttl=30)
    assert held
    waiter = asyncio.create_task(locks.acquire("a", wait=20))
    await asyncio.to_thread(wait_until, lambda: listeners(server) == 1)
    assert await held.release()
    with at_most(0.5, "a message wakes it: alone it would look once a second"):
        lease = await waiter
    assert lease
    assert protocols(server, "ours") == {str(protocol)}
    await lease.release()
    await locks.close()


def listeners(server: EmbeddedServer) -> int:
    with server.client() as client:
        return len(client.pubsub_channels())


def hand_over(locks: Locks) -> None:
    """Release what another thread waits for: the message that wakes it is read."""
    held = locks.acquire("b", ttl=30)
    assert held
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(locks.acquire, "b", wait=20)
        wait_until(lambda: (info := locks.info("b")) and info.waiters)
        assert held.release()
        lease = waiter.result(20)
    assert lease
    assert lease.release()


@contextmanager
def silent_name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Lookups of a name get no reply before the block ends; gives those that were made."""
    ended = threading.Event()
    look_up = socket.getaddrinfo
    made: list[Any] = []

    def wait_for_reply(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "lock.example":
            made.append(threading.current_thread())
            ended.wait(60)
            raise socket.gaierror("as planned")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", wait_for_reply)
    yield made
    ended.set()
    wait_until(lambda: not any(thread.is_alive() for thread in made if not_of_asyncio(thread)))


def not_of_asyncio(thread: threading.Thread) -> bool:
    """A thread of the loop's executor lives longer than its lookup."""
    return not thread.name.startswith("asyncio_")


def test_silent_name_server_does_not_hold_a_call(
    face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget of a call includes the lookup, and blocked ones do not use up the threads."""
    locks = face("redis://lock.example:1")
    with silent_name_server(monkeypatch) as lookups:
        for _ in range(2):
            with (
                at_most(3, "its budget"),
                pytest.raises(LockUnavailable, match=r"name server|timed out"),
            ):
                locks.info("a")
        assert lookups
        assert len([thread for thread in lookups if not_of_asyncio(thread)]) <= 1


def test_one_timeout_does_not_close_connections_that_are_in_use_meanwhile(
    server: EmbeddedServer,
) -> None:
    """One slow answer is no reason for every thread to connect again."""
    pool = BlockingPool(server.url)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(pool.ask, pack("BLPOP", "nothing", 5), now() + 1)
        until = now() + 0.8
        while now() < until:
            assert pool.ask(pack("PING"), now() + 5) == b"PONG"
        with pytest.raises(ConnectionFailed, match="no answer"):
            slow.result(10)
    assert len(pool._idle) == 1
    pool.close_all()


GREEN = """
import {kind}
{patch}
import threading
import redis
from celery_locks import Locks
from tests.support.waiting import wait_until

locks = Locks(redis.Redis(host="localhost", port={port}, max_connections=3))

def work(number):
    with locks.hold(f"own{{number}}", ttl=10), locks.hold("shared", ttl=10, wait=30):
        done.append(number)

done = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
with locks.hold("a", ttl=1.5) as lease:
    wait_until(lambda: lease.renewals > 1)
locks.close()
print(len(done))
"""


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("gevent.monkey", "gevent.monkey.patch_all()"),
        ("eventlet", "eventlet.monkey_patch()"),
        ("threading", ""),
    ],
)
def test_greenlets_and_native_threads_share_a_limited_pool_at_a_named_host(
    server: EmbeddedServer, kind: str, patch: str
) -> None:
    """Greenlets make calls and wait, a native thread renews: each resolves the name for itself."""
    code = GREEN.format(kind=kind, patch=patch, port=server.port)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.strip() == "20", done.stderr
