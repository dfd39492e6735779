"""Tasks that hold one lock and want another; run by real workers with the environment of Stage."""

import asyncio
import os
from typing import Any

from celery import Celery

from celery_locks import AsyncLocks, LockedTask, Locks
from tests.support.waiting import wait_until

BROKER = os.environ.get("OUTCOME_BROKER", "redis://localhost:6379/0")
LOCKS = os.environ.get("OUTCOME_LOCKS", BROKER)
# Longer than any test waits for a result.
LONG = 100.0

app = Celery("deadlocks", broker=BROKER, backend=BROKER)
app.conf.update(locks_url=LOCKS, locks_ttl=30, broker_connection_retry_on_startup=True)
app.conf.update(worker_prefetch_multiplier=1, result_extended=True)
locks = Locks.from_url(LOCKS)


def name_itself(name: str, *args: Any, **kwargs: Any) -> str:
    """The first argument is the lock's name, so that a task can name another task's lock."""
    return name


@app.task(base=LockedTask, bind=True, lock_key=name_itself, lock_on_conflict="wait")
def cross(self: Any, mine: str, theirs: str) -> str:
    """Hold a lock, and want the other one's as soon as that is held."""
    wait_until(lambda: locks.is_locked(theirs), 60, what=f"{theirs} to be held")
    with locks.hold(theirs, wait=LONG):
        return "both"


@app.task(base=LockedTask, bind=True, lock_key=name_itself, lock_on_conflict="wait")
def cross_async(self: Any, mine: str, theirs: str) -> str:
    """The same, in an event loop that the task runs."""
    wait_until(lambda: locks.is_locked(theirs), 60, what=f"{theirs} to be held")

    async def want() -> str:
        async_locks = AsyncLocks.from_url(LOCKS)
        try:
            async with async_locks.hold(theirs, wait=LONG):
                return "both"
        finally:
            await async_locks.close()

    return asyncio.run(want())


@app.task(base=LockedTask, bind=True, lock_key=name_itself, lock_on_conflict="wait", lock_wait=LONG)
def inside_itself(self: Any, key: str, depth: int = 0) -> Any:
    """Run itself by ``apply``, as a worker would: the lock is taken already."""
    if depth:
        return "inside"
    return inside_itself.apply((key, depth + 1)).get(disable_sync_subtasks=False)


@app.task(base=LockedTask, lock_key=name_itself)
def hold_own(key: str, **asked: Any) -> str:
    """Hold the lock that the task itself has."""
    with locks.hold(key, **asked):
        return "inside"


@app.task(base=LockedTask, bind=True, lock_key=name_itself)
def show(self: Any, key: str, inner: str) -> dict[str, Any]:
    """What the store says of a lock that the task's code holds."""
    with locks.hold(inner):
        [holder] = locks.holders(inner)
        return {**holder.as_dict(), "own_pid": os.getpid()}


@app.task(bind=True)
def show_plain(self: Any, inner: str) -> dict[str, Any]:
    """The same of a task that has no lock of its own."""
    with locks.hold(inner):
        [holder] = locks.holders(inner)
        return {**holder.as_dict(), "own_pid": os.getpid()}
