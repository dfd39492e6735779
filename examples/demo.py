"""Four processes want one lock; one of them is killed while it holds it.

Needs no Redis: a real Valkey server is started on a free port and stopped at the end. Each process
is told by this one when to let go, over a pipe, so that the story is the same each time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from celery_locks import Holder, Locks
from celery_locks.admin import list_locks
from celery_locks.testing.servers import EmbeddedServer

LOCK, TTL, PATIENCE = "invoices:customer-42", 3.0, 15.0
_SPAWN = multiprocessing.get_context("spawn")
_began = time.monotonic()


def main() -> None:
    with EmbeddedServer() as server:
        say(f"A lock server runs on port {server.port}. The lock is called {LOCK!r}.")
        locks = Locks.from_url(server.url)
        with workers(server.url, locks, "ABCD") as (a, b, c, d):
            tell(a, b, c, d, locks)
        step("Nobody wants it any more")
        show(locks)


def tell(a: Worker, b: Worker, c: Worker, d: Worker, locks: Locks) -> None:
    step("A came first and holds the lock; B, C and D wait in line, in that order")
    show(locks)

    step("A lets go: B is woken and goes on")
    began = time.monotonic()
    a.let_go()
    entered(b, a, began, "A let go")
    show(locks)

    step("B holds it longer than a third of its lease: it is renewed meanwhile, nobody has to ask")
    time.sleep(TTL / 2)
    show(locks)

    step("B is killed (SIGKILL) while it holds the lock: it cannot let go, nor renew its lease")
    began = time.monotonic()
    b.process.kill()
    b.process.join()
    show(locks)
    say(f"  The lease is for {TTL:g} s and was renewed each {TTL / 3:g} s; now it runs out.")
    entered(c, b, began, "B was killed")
    show(locks)

    step("C lets go, then D")
    began = time.monotonic()
    c.let_go()
    entered(d, c, began, "C let go")
    d.let_go()


@dataclass
class Worker:
    """One of the processes, as seen from here."""

    name: str
    process: BaseProcess
    pipe: Connection
    fence: int = 0

    def has_entered(self) -> float:
        """When it did, on the clock that all processes share."""
        if not self.pipe.poll(PATIENCE):
            raise SystemExit(f"{self.name} did not get the lock within {PATIENCE:g} s")
        self.fence, moment = self.pipe.recv()
        return float(moment)

    def let_go(self) -> None:
        self.pipe.send("let go")
        self.process.join()


@contextmanager
def workers(url: str, locks: Locks, names: str) -> Iterator[list[Worker]]:
    """Start them one after the other, so that their order in line is known; none is left behind."""
    started: list[Worker] = []
    try:
        for name in names:
            started.append(start(url, name))
            wait_until_known(locks, len(started))
        started[0].has_entered()
        yield started
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.join()


def start(url: str, name: str) -> Worker:
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=work, args=(url, name, there), daemon=True)
    process.start()
    there.close()
    return Worker(name, process, here)


def wait_until_known(locks: Locks, count: int) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        info = locks.info(LOCK)
        if info and len(info.holders) + len(info.waiters) == count:
            return
        time.sleep(0.02)
    raise SystemExit("the processes did not start in time")


def work(url: str, name: str, pipe: Connection) -> None:
    """What each process does: wait for the lock, hold it until told to let go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that tells the story
    me = Holder(worker=name, pid=os.getpid())
    with Locks.from_url(url).hold(LOCK, ttl=TTL, wait=60, holder=me) as lease:
        pipe.send((lease.fence, time.monotonic()))
        pipe.recv()


def entered(worker: Worker, former: Worker, began: float, since: str) -> None:
    taken = worker.has_entered() - began
    after = f"{taken * 1e3:.1f} ms" if taken < 1 else f"{taken:.2f} s"
    say(f"  {worker.name} got it {after} after {since}.")
    say(f"  Its fence, {worker.fence}, is higher than {former.name}'s: {former.fence}.")


def show(locks: Locks) -> None:
    """What an operator sees."""
    found = list(list_locks(locks))
    if not found:
        say("  list: no locks")
    for info in found:
        say(f"  list: {info.name}")
        for holder in info.holders:
            left = f"lapses in {info.remaining:.1f} s unless renewed"
            say(f"    held by  {who(holder)}, fence {holder.fence}, {left}")
        for waiter in info.waiters:
            say(f"    waiting  {who(waiter)}")


def who(holder: Holder) -> str:
    return f"{holder.worker} (pid {holder.pid})"


def step(text: str) -> None:
    say(f"\n[{time.monotonic() - _began:4.1f} s] {text}.")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("\nStopped; the server and the processes are gone.")
        sys.exit(130)
