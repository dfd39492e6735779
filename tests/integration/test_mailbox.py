"""The connections of those who wait: of a loop that ended, refused by the server, left alone."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from celery_locks import AsyncLocks, Locks
from celery_locks.testing.servers import EmbeddedServer
from tests.support.waiting import wait_until

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
    busy = others.acquire("busy")
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
    assert caplog.records == []
    assert busy
    assert busy.release()
    others.close()
