"""The connections of those who wait: of a loop that ended, refused by the server, left alone."""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from celery_locks import AsyncLocks, Locks, LockUnavailable
from celery_locks.store import notifications
from celery_locks.store.effects import Subscribe
from celery_locks.store.redis_store import AsyncRedisStore, RedisStore
from tests.servers.embedded import EmbeddedServer
from tests.support.news import at_most
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

Open = Callable[..., Any]
Run = Callable[[Coroutine[Any, Any, None]], None]


def clients(server: EmbeddedServer) -> int:
    """How many connections others than the one that asks have."""
    with server.client() as client:
        return len(client.client_list()) - 1


def run_roughly(job: Coroutine[Any, Any, None]) -> None:
    """Unlike asyncio.run it cancels nothing before it closes the loop."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(job)
    finally:
        loop.close()


@pytest.mark.parametrize("run", [asyncio.run, run_roughly])
def test_loop_that_has_ended_leaves_no_connection(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    """A module's AsyncLocks, used by one asyncio.run per task, would run out of files."""
    others, locks = Locks.from_url(server.url), AsyncLocks.from_url(server.url)
    busy = others.acquire("busy", ttl=600)  # no renewal, and so no connection of the renewer
    before = clients(server)

    async def job() -> None:
        async with locks.hold("free"):
            assert await locks.acquire("busy", wait=0.05) is None

    for _ in range(5):
        run(job())
    gc.collect()  # what was left open would warn now
    wait_until(lambda: clients(server) - before <= 2, what="all but the last loop's two to close")
    run(locks.close())
    gc.collect()
    wait_until(lambda: clients(server) == before, what="the last loop's to close")
    assert [r for r in caplog.records if r.name.startswith("celery_locks")] == []
    assert busy
    assert busy.release()
    others.close()


def listeners(server: EmbeddedServer) -> int:
    with server.client() as client:
        return len(client.pubsub_channels())


def test_refusal_that_passes_is_put_to_the_test_again(
    face: Open, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was full once would else be polled for the life of the process."""
    monkeypatch.setattr(notifications, "_RETRY", 0.1)
    near, far = face(server.url), Locks.from_url(server.url)
    near.info("busy")  # it has one connection, and gets no other
    busy = far.acquire("busy")
    assert busy
    with server.client() as client:
        client.config_set("maxclients", len(client.client_list()))
        assert near.acquire("busy", wait=0.5) is None
        client.config_set("maxclients", 1000)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(near.acquire, "busy", wait=30)
        wait_until(lambda: listeners(server) == 1, what="it to listen")
        assert busy.release()
        near.release(waiting.result(10))
    far.close()


def test_refusal_of_permission_is_final(
    face: Open, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody gives that right while we run: asking again and again would fill the server's log."""
    with server.client() as client:
        client.acl_setuser("shy", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all"])
    near = face(server.url.replace("//", "//shy:p@"))
    far = Locks.from_url(server.url)
    busy = far.acquire("busy")
    assert busy
    for _ in range(3):
        assert near.acquire("busy", wait=0.5) is None
    with server.client() as client:
        refused = [entry for entry in client.acl_log() if entry["reason"] == "channel"]
    assert [entry["count"] for entry in refused] == [1]
    assert [r.getMessage() for r in caplog.records if "refuses a subscription" in r.getMessage()]
    assert busy.release()
    far.close()


def wait_in_threads(url: str, count: int, **asked: Any) -> list[Any]:
    locks = Locks.from_url(url)
    with ThreadPoolExecutor(count) as pool:
        all_asked = [pool.submit(locks.acquire, "busy", **asked) for _ in range(count)]
        answers = [one.exception() or one.result() for one in all_asked]
    locks.close()
    return answers


def wait_in_tasks(url: str, count: int, **asked: Any) -> list[Any]:
    async def main() -> list[Any]:
        locks = AsyncLocks.from_url(url)
        all_asked = [locks.acquire("busy", **asked) for _ in range(count)]
        answers = await asyncio.gather(*all_asked, return_exceptions=True)
        await locks.close()
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize("wait", [wait_in_threads, wait_in_tasks])
def test_waiters_do_not_wait_for_each_other_at_a_silent_server(
    valkey: EmbeddedServer, proxy: Proxy, wait: Callable[..., list[Any]]
) -> None:
    """One listens for all, and it fails for all: the last of many is told as soon as the first."""
    far = Locks.from_url(valkey.url)
    busy = far.acquire("busy")
    assert busy
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(wait, proxy.url, 10, ttl=3, wait=30)
        wait_until(lambda: (info := far.info("busy")) and len(info.waiters) == 10)
        proxy.black_hole()
        proxy.cut()
        with at_most(3, "to listen and to ask, each a second"):
            assert [type(answer) for answer in answers.result(30)] == [LockUnavailable] * 10
    assert busy.release()
    far.close()


def listens(budget: float) -> Subscribe:
    return Subscribe("p:{0}:", os.urandom(8).hex(), connect=True, budget=budget)


def test_thread_that_has_little_time_does_not_wait_for_one_that_has_much(proxy: Proxy) -> None:
    """It polls meanwhile; and the next one tries again, for silence passes."""
    store = RedisStore.from_url(proxy.url, "p")
    proxy.black_hole()
    with ThreadPoolExecutor() as pool:
        patient = pool.submit(store.perform, listens(2))
        wait_until(lambda: proxy.connections == 1)
        with at_most(0.2):
            assert store.perform(listens(0.2)) == "-"
        assert patient.result(10) == "-"
    proxy.pass_through()
    assert store.perform(listens(2)).startswith("p:w:")
    store.close()


async def test_task_that_has_little_time_does_not_wait_for_one_that_has_much(proxy: Proxy) -> None:
    store = AsyncRedisStore.from_url(proxy.url, "p")
    proxy.black_hole()
    patient = asyncio.create_task(store.perform(listens(2)))
    await asyncio.sleep(0)
    with at_most(0.2):
        assert await store.perform(listens(0.2)) == "-"
    assert not patient.done()
    assert await patient == "-"
    proxy.pass_through()
    assert (await store.perform(listens(2))).startswith("p:w:")
    await store.close()


def subscribers(server: EmbeddedServer) -> set[str]:
    """The ids of the connections that have subscribed."""
    with server.client() as client:
        return {entry["id"] for entry in client.client_list() if entry["sub"] != "0"}


async def test_cancelled_reader_leaves_the_subscription_to_the_others(
    server: EmbeddedServer,
) -> None:
    """Whoever waits first reads for all; its end, unlike a broken connection, costs nobody."""
    locks = AsyncLocks.from_url(server.url)
    held = await locks.acquire("busy", ttl=60)
    assert held
    reader = asyncio.create_task(locks.acquire("busy", wait=30))
    await asyncio.to_thread(wait_until, lambda: len(subscribers(server)) == 1)
    other = asyncio.create_task(locks.acquire("busy", wait=30))
    before = subscribers(server)
    await asyncio.to_thread(wait_until, lambda: waiting(server) == 2)
    reader.cancel()
    with suppress(asyncio.CancelledError):
        await reader
    await asyncio.to_thread(wait_until, lambda: waiting(server) == 1)
    assert await held.release()
    with at_most(0.5, "a message wakes it: alone it would look once a second"):
        lease = await other
    assert lease
    assert subscribers(server) == before
    await lease.release()
    await locks.close()


def waiting(server: EmbeddedServer) -> int:
    locks = Locks.from_url(server.url)
    info = locks.info("busy")
    locks.close()
    return len(info.waiters) if info else 0


async def test_task_that_is_cancelled_fails_nobody_else(proxy: Proxy) -> None:
    """Its subscription ends with it; the next in line makes its own."""
    store = AsyncRedisStore.from_url(proxy.url, "p")
    proxy.black_hole()
    first, second = (asyncio.create_task(store.perform(listens(10))) for _ in range(2))
    await asyncio.to_thread(wait_until, lambda: proxy.connections == 1)
    proxy.pass_through()
    first.cancel()
    assert (await second).startswith("p:w:")
    await store.close()
