"""Awaited code is cancelled on its way: no lock is to wait until it lapses."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from celery_locks import AsyncLocks, Locks
from celery_locks.core.renewer import renewer
from celery_locks.recipes import AsyncBuffer, claim_or_create, idempotent
from tests.servers.embedded import EmbeddedServer
from tests.support.keys import key_alone
from tests.support.waiting import wait_until

Way = Callable[[AsyncLocks, str], Awaitable[None]]
TTL = 600.0


async def acquire(locks: AsyncLocks, name: str) -> None:
    lease = await locks.acquire(name, ttl=TTL)
    assert lease
    await lease.release()


async def hold(locks: AsyncLocks, name: str) -> None:
    async with locks.hold(name, ttl=TTL):
        await asyncio.sleep(0)


async def reenter(locks: AsyncLocks, name: str) -> None:
    async with locks.hold(name, ttl=TTL, reentrant=True):
        with suppress(asyncio.CancelledError):
            async with locks.hold(name, ttl=TTL, reentrant=True):
                await asyncio.sleep(0)


async def wait(locks: AsyncLocks, name: str) -> None:
    async with locks.hold(name, ttl=TTL, wait=30):
        await asyncio.sleep(0)


async def once(locks: AsyncLocks, name: str) -> None:
    async def work(name: str) -> str:
        await asyncio.sleep(0)
        return name

    await idempotent(locks, key=key_alone, lock_ttl=TTL)(work)(name)


async def create(locks: AsyncLocks, name: str) -> None:
    async def make() -> int:
        await asyncio.sleep(0)
        return 1

    await claim_or_create(locks, name, make, lock_ttl=TTL)


async def absorb(locks: AsyncLocks, name: str) -> None:
    async def work(messages: list[object]) -> None:
        await asyncio.sleep(0)

    buffer = AsyncBuffer(locks, "chat", ttl=TTL)
    await buffer.push(name, "hello")
    await buffer.absorb(name, work)


@pytest.mark.parametrize("way", [acquire, hold, reenter, wait, once, create, absorb])
async def test_nothing_is_left_held_by_what_is_cancelled_at_any_step(
    valkey: EmbeddedServer, way: Way
) -> None:
    """One turn of the event loop later each time, until it has ended by itself several times."""
    valkey.flush()
    others, locks = Locks.from_url(valkey.url), AsyncLocks.from_url(valkey.url)
    await way(locks, "warm")
    turns = ended = 0
    while ended < 5:
        turns += 1
        name = str(turns)
        # Whoever waits is handed the lock halfway.
        other = others.acquire(name, ttl=TTL) if way is wait else None
        task = asyncio.ensure_future(way(locks, name))
        for turn in range(turns):
            await asyncio.sleep(0)
            if other and turn == turns // 2:
                other.release()
        ended += task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if other:
            other.release()
        wait_until(
            lambda name=name: not renewer.tokens and others.info(name) is None,
            5,
            what=f"what was cancelled after {turns} turns",
        )
    assert turns > 10
    await locks.close()
    others.close()
