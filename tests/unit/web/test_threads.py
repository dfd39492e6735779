"""Slow requests and changes keep nobody else waiting."""

from __future__ import annotations

import asyncio
import threading

import fakeredis
import httpx
import pytest

from celery_locks import Locks
from celery_locks.web import create_app
from celery_locks.web.threads import run_in_thread, run_slow


async def test_changes_that_wait_do_not_block_reads() -> None:
    """A release with a grace period may wait for a minute: changes have their own threads."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)

    busy = [asyncio.create_task(run_in_thread("change", waits)) for _ in range(20)]
    assert await asyncio.wait_for(run_in_thread("quick", lambda: "answer"), 30) == "answer"
    assert not any(task.done() for task in busy)
    gate.set()
    await asyncio.gather(*busy)


async def test_slow_requests_of_one_caller_do_not_block_others() -> None:
    """One read key with 64 requests at once must not delay everybody else."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)

    busy = [asyncio.create_task(run_slow("greedy", waits)) for _ in range(64)]
    await asyncio.sleep(0)
    for call in (
        run_slow("other", lambda: "answer"),
        run_in_thread("quick", lambda: "answer"),
    ):
        assert await asyncio.wait_for(call, 30) == "answer"
    assert not any(task.done() for task in busy)
    gate.set()
    await asyncio.gather(*busy)


def test_quick_requests_are_answered_while_slow_ones_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page's list and login stay fast during 64 requests for `stale`."""
    locks, gate = Locks(fakeredis.FakeRedis()), threading.Event()
    monkeypatch.setattr("celery_locks.web.snapshot.server_time", lambda locks: 1.0)
    monkeypatch.setattr("celery_locks.web.handlers.server_time", lambda locks: 1.0)
    monkeypatch.setattr("celery_locks.admin.stale", lambda *_, **__: gate.wait(30))
    app = create_app(locks, read_keys=["key"])

    async def run() -> None:
        transport = httpx.ASGITransport(app, client=("10.0.0.7", 4242))
        headers = {"X-API-Key": "key"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as client:
            slow = [asyncio.create_task(client.get("/api/v1/locks/stale")) for _ in range(64)]
            for path in ("me", "locks"):
                answer = await asyncio.wait_for(client.get(f"/api/v1/{path}"), 20)
                assert answer.status_code == 200, answer.text
            assert not any(task.done() for task in slow)
            gate.set()
            await asyncio.gather(*slow)

    asyncio.run(run())
