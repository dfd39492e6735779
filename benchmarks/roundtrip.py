"""Acquire and release of a free lock: the floor, the peers, ours; blocking and awaited."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pottery
import redis.asyncio
import redis_lock

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.timing import MICROSECOND, in_turns, in_turns_async, p50, p99
from celery_locks import AsyncLocks, Locks
from tests.servers.embedded import EmbeddedServer

ROUNDS, EACH = 60, 50
OURS, FLOOR, REDIS_PY = "celery-locks", "floor: SET NX PX, Lua delete", "redis-py Lock"
_DELETE = """if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0"""


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "roundtrip",
        "Acquire and release, nobody else wants it",
        ("", "p50 µs", "p99 µs", "× floor"),
    )
    blocking = in_turns(_candidates(server), effort.count(ROUNDS), EACH)
    _fill(report, blocking, floor=p50(blocking[FLOOR]))
    awaited = asyncio.run(_awaited(server, effort.count(ROUNDS // 2)))
    _fill(report, awaited, floor=p50(blocking[FLOOR]))
    _judge(report, blocking, awaited)
    return report


def _fill(report: Report, taken: dict[str, list[float]], floor: float) -> None:
    for name, times in taken.items():
        middle = p50(times)
        report.add(name, middle / MICROSECOND, p99(times) / MICROSECOND, middle / floor)


def _judge(
    report: Report, blocking: dict[str, list[float]], awaited: dict[str, list[float]]
) -> None:
    ours = p50(blocking[OURS])
    report.at_most("celery-locks against the floor", 1.15, ours / p50(blocking[FLOOR]), " ×")
    report.at_most("celery-locks against redis-py Lock", 1, ours / p50(blocking[REDIS_PY]), " ×")
    there, here = p50(awaited[f"{REDIS_PY}, awaited"]), p50(awaited[f"{OURS}, awaited"])
    report.at_most("the same, awaited", 1, here / there, " ×")


def _candidates(server: EmbeddedServer) -> dict[str, Callable[[], object]]:
    return {
        FLOOR: _floor(server),
        REDIS_PY: _redis_py(server),
        "python-redis-lock": _python_redis_lock(server),
        "pottery Redlock, one master": _pottery(server),
        OURS: _ours(server),
    }


def _floor(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()
    delete = client.register_script(_DELETE)

    def both() -> None:
        token = uuid.uuid4().hex
        client.set("bench:floor", token, nx=True, px=30_000)
        delete(["bench:floor"], [token])

    return both


def _redis_py(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()

    def both() -> None:
        lock = client.lock("bench:redis-py", timeout=30)
        lock.acquire(blocking=False)
        lock.release()

    return both


def _python_redis_lock(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()

    def both() -> None:
        lock = redis_lock.Lock(client, "bench:prl", expire=30)
        lock.acquire(blocking=False)
        lock.release()

    return both


def _pottery(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()

    def both() -> None:
        lock = pottery.Redlock(key="bench:pottery", masters={client}, auto_release_time=30)
        lock.acquire(blocking=False)
        lock.release()

    return both


def _ours(server: EmbeddedServer) -> Callable[[], object]:
    locks = Locks.from_url(server.url)

    def both() -> None:
        lease = locks.acquire("bench:ours", ttl=30)
        assert lease is not None
        lease.release()

    return both


async def _awaited(server: EmbeddedServer, rounds: int) -> dict[str, list[float]]:
    locks = AsyncLocks.from_url(server.url)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        candidates = {
            f"{REDIS_PY}, awaited": _redis_py_awaited(client),
            f"{OURS}, awaited": _ours_awaited(locks),
        }
        taken = await in_turns_async(candidates, rounds, EACH)
    await locks.close()
    return taken


def _redis_py_awaited(client: redis.asyncio.Redis) -> Callable[[], Awaitable[object]]:
    async def both() -> None:
        lock = client.lock("bench:redis-py", timeout=30)
        await lock.acquire(blocking=False)
        await lock.release()

    return both


def _ours_awaited(locks: AsyncLocks) -> Callable[[], Awaitable[object]]:
    async def both() -> None:
        lease = await locks.acquire("bench:ours", ttl=30)
        assert lease is not None
        await lease.release()

    return both
