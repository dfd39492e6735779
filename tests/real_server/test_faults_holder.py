"""The holder itself is stopped or dies; what happens to it and to those behind it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.child import start_python
from tests.support.news import at_most
from tests.support.waiting import wait_until

Open = Callable[..., Any]

HOLDER = """
import sys, time
from celery_locks import LeaseLost, Locks, subscribe
subscribe(lambda event: print(event.kind, flush=True))
lease = Locks.from_url(sys.argv[1]).acquire("stopped", ttl=float(sys.argv[2]))
print("holding", flush=True)
try:
    while True:
        if sys.argv[3] == "checks":
            lease.check()
        time.sleep(0.001)
except LeaseLost:
    print("describe_entry", flush=True)
"""

WAITER = """
import sys
from celery_locks import Locks
print("waiting", flush=True)
lease = Locks.from_url(sys.argv[1]).acquire("stopped", ttl=30, wait=30)
print("got", flush=True)
sys.stdin.read()
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = start_python(code, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def read_until(process: "subprocess.Popen[str]", *words: str) -> str:
    """The first of these words that the child says; pytest's timeout is the deadline."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() in words:
            return line.strip()
    raise AssertionError(f"The child ended and never said {words}.")


@pytest.fixture
def clean(valkey: EmbeddedServer) -> EmbeddedServer:
    valkey.flush()
    return valkey


def test_holder_stopped_past_its_ttl_is_told_before_it_goes_on(
    locks: Open, clean: EmbeddedServer
) -> None:
    """Another has the lock by now; the first check() after waking must say so."""
    with child(HOLDER, clean.url, "1", "checks") as holder:
        read_until(holder, "holding")
        os.kill(holder.pid, signal.SIGSTOP)
        other = locks(clean.url).acquire("stopped", ttl=30, wait=3)
        assert other is not None
        os.kill(holder.pid, signal.SIGCONT)
        assert read_until(holder, "describe_entry") == "describe_entry"
        other.check()
        assert [h.token for h in locks(clean.url).info("stopped").holders] == [other.token]


def test_keeper_tells_a_stopped_holder_that_does_not_ask(
    locks: Open, clean: EmbeddedServer
) -> None:
    with child(HOLDER, clean.url, "1", "sleeps") as holder:
        read_until(holder, "holding")
        os.kill(holder.pid, signal.SIGSTOP)
        other = locks(clean.url).acquire("stopped", ttl=30, wait=3)
        assert other is not None
        os.kill(holder.pid, signal.SIGCONT)
        assert read_until(holder, "lost", "revived") == "lost"
        other.check()


def test_stopped_holder_whose_lock_nobody_took_is_revived(
    locks: Open, clean: EmbeddedServer
) -> None:
    """Lapsed is not lost: what nobody wanted meanwhile is the holder's again."""
    with child(HOLDER, clean.url, "1", "sleeps") as holder:
        read_until(holder, "holding")
        os.kill(holder.pid, signal.SIGSTOP)
        face = locks(clean.url)
        wait_until(lambda: not face.locks.is_locked("stopped"), 3, what="the lease to lapse")
        os.kill(holder.pid, signal.SIGCONT)
        assert read_until(holder, "lost", "revived") == "revived"
        assert face.acquire("stopped", ttl=1) is None


def test_holder_killed_frees_within_its_ttl(locks: Open, clean: EmbeddedServer) -> None:
    with child(HOLDER, clean.url, "1.5", "sleeps") as holder:
        read_until(holder, "holding")
        os.kill(holder.pid, signal.SIGKILL)
        with at_most(1.6, "waiting for a dead holder"):
            assert locks(clean.url).acquire("stopped", ttl=1, wait=5)


def wait_one_listens(server: EmbeddedServer) -> None:
    """On a busy machine the server hears later than we do that a process has ended."""
    client = server.client()
    wait_until(lambda: len(client.client_list(_type="pubsub")) == 1)
    client.close()


@pytest.mark.parametrize(
    ("blow", "within"), [(signal.SIGKILL, 0.5), (signal.SIGSTOP, 2.0)], ids=["killed", "stopped"]
)
def test_waiter_that_is_gone_does_not_block_the_queue(
    locks: Open, clean: EmbeddedServer, blow: signal.Signals, within: float
) -> None:
    """A dead one has no connection and is passed over; a stopped one costs the claim window."""
    face = locks(clean.url)
    held = face.acquire("stopped", ttl=30)
    with child(WAITER, clean.url) as first, child(WAITER, clean.url) as second:
        wait_until(lambda: len(face.info("stopped").waiters) == 2, 15)
        head = face.info("stopped").waiters[0].pid
        behind = second if head == first.pid else first
        os.kill(head, blow)
        if blow is signal.SIGKILL:
            (first if behind is second else second).wait()
            wait_one_listens(clean)
        held.release()
        with at_most(within):
            read_until(behind, "got")


def test_many_dead_waiters_are_passed_over_at_once(locks: Open, clean: EmbeddedServer) -> None:
    face = locks(clean.url)
    held = face.acquire("stopped", ttl=30)
    several = """
import os, sys, threading
from celery_locks import Locks
locks = Locks.from_url(sys.argv[1])
for _ in range(20):
    threading.Thread(target=lambda: locks.acquire("stopped", ttl=30, wait=30), daemon=True).start()
sys.stdin.read()
"""
    with child(several, clean.url) as dead, child(WAITER, clean.url) as alive:
        wait_until(lambda: len(face.info("stopped").waiters) == 21, 15)
        dead.kill()
        dead.wait()
        wait_one_listens(clean)
        held.release()
        with at_most(2.0):
            read_until(alive, "got")
