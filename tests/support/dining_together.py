"""A philosopher who acquires both forks together, as a process.

Arguments: URL, seat, meals, "sync" or "async". Forks are counters on the server: whoever finds one
in use prints "overlap". Prints the number of meals at the end.
"""

import asyncio
import sys

import redis

from celery_locks import AsyncLocks, Locks

SEATS = 5


def eat(client: redis.Redis, forks: tuple[str, str]) -> None:
    """Use both forks for a moment."""
    for fork in forks:
        if client.incr(f"use:{fork}") != 1:
            print("overlap", fork, flush=True)
    for fork in forks:
        client.decr(f"use:{fork}")


async def dine_async(url: str, client: redis.Redis, forks: tuple[str, str], meals: int) -> None:
    locks = AsyncLocks.from_url(url)
    for _ in range(meals):
        async with locks.hold(*forks, wait=120):
            eat(client, forks)
    await locks.close()


def dine(url: str, client: redis.Redis, forks: tuple[str, str], meals: int) -> None:
    locks = Locks.from_url(url)
    for _ in range(meals):
        with locks.hold(*forks, wait=120):
            eat(client, forks)
    locks.close()


if __name__ == "__main__":
    url, seat, meals, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    forks = f"fork:{seat}", f"fork:{(seat + 1) % SEATS}"
    client = redis.Redis.from_url(url)
    if kind == "async":
        asyncio.run(dine_async(url, client, forks, meals))
    else:
        dine(url, client, forks, meals)
    client.close()
    print("meals", meals, flush=True)
