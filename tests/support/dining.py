"""Threads that take locks one after the other, in their own order or in one; run as processes.

Arguments: URL, seed, rounds of each thread, "any" order or "same", "sync" or "async".
Prints how many deadlocks there were, how many rounds were done, and the longest wait.
"""

import asyncio
import random
import sys
import threading
import time
from contextlib import AsyncExitStack, ExitStack

from celery_locks import AsyncLocks, LockDeadlock, Locks

NAMES = list("abcde")
THREADS = 4
PATIENCE = 60.0


class Table:
    """What all threads or asyncio tasks of this process share."""

    def __init__(self, url: str, seed: str, rounds: str, order: str, kind: str) -> None:
        self.url, self.rounds, self.order, self.kind = url, int(rounds), order, kind
        self.seed = seed
        self.deadlocks = self.done = 0
        self.longest = 0.0
        self._lock = threading.Lock()

    def choose(self, chance: random.Random) -> list[tuple[str, int]]:
        """Two or three of the locks, the last of which is a semaphore."""
        names = chance.sample(NAMES, chance.choice((2, 3)))
        chosen = names if self.order == "any" else sorted(names)
        return [(name, 2 if name == NAMES[-1] else 1) for name in chosen]

    def count(self, *, deadlock: bool) -> None:
        with self._lock:
            self.deadlocks += deadlock
            self.done += not deadlock

    def note_wait(self, began: float) -> None:
        with self._lock:
            self.longest = max(self.longest, time.monotonic() - began)

    def visit(self, locks: Locks, chance: random.Random) -> None:
        try:
            with ExitStack() as stack:
                for name, limit in self.choose(chance):
                    began = time.monotonic()
                    stack.enter_context(locks.hold(name, limit=limit, wait=PATIENCE))
                    self.note_wait(began)
                    time.sleep(chance.uniform(0, 0.003))
                self.count(deadlock=False)
        except LockDeadlock:
            self.count(deadlock=True)

    async def avisit(self, locks: AsyncLocks, chance: random.Random) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, limit in self.choose(chance):
                    began = time.monotonic()
                    held = locks.hold(name, limit=limit, wait=PATIENCE)
                    await stack.enter_async_context(held)
                    self.note_wait(began)
                    await asyncio.sleep(chance.uniform(0, 0.003))
                self.count(deadlock=False)
        except LockDeadlock:
            self.count(deadlock=True)

    def sit(self, locks: Locks, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        for _ in range(self.rounds):
            self.visit(locks, chance)

    async def asit(self, locks: AsyncLocks, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        for _ in range(self.rounds):
            await self.avisit(locks, chance)

    def run(self) -> None:
        locks = Locks.from_url(self.url)
        threads = [threading.Thread(target=self.sit, args=(locks, n)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        locks.close()

    async def arun(self) -> None:
        locks = AsyncLocks.from_url(self.url)
        await asyncio.gather(*(self.asit(locks, n) for n in range(THREADS)))
        await locks.close()


def main() -> None:
    table = Table(*sys.argv[1:6])
    if table.kind == "async":
        asyncio.run(table.arun())
    else:
        table.run()
    print(table.deadlocks, table.done, f"{table.longest:.3f}")


if __name__ == "__main__":
    main()
