"""The renewer at work: one thread per server, few calls, many leases."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from celery_locks import LeaseLost, State
from celery_locks.core.renewer import renewer
from tests.servers.embedded import EmbeddedServer
from tests.support.child import run_python
from tests.support.news import News
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

Open = Callable[..., Any]


def scripts_run(server: EmbeddedServer) -> int:
    stats = server.info("commandstats").get("cmdstat_evalsha", "calls=0")
    return int(stats.split("calls=")[1].split(",")[0])


def test_thousand_leases_are_renewed_in_few_calls(
    locks: Open, server: EmbeddedServer, news: News
) -> None:
    """A worker with a thousand locks must not be a thousand round trips."""
    face = locks(server.url)
    leases = [face.acquire(f"lock{n}", ttl=4) for n in range(1000)]
    wait_until(lambda: all(lease.renewals >= 1 for lease in leases), 6)
    before, rounds = scripts_run(server), min(lease.renewals for lease in leases)
    wait_until(lambda: all(lease.renewals >= rounds + 1 for lease in leases), 6)
    calls = scripts_run(server) - before
    assert calls <= 8, f"{calls} calls to renew a thousand leases"
    assert all(lease.state is State.HELD for lease in leases)
    assert not any("suspended" in news.of(lease) for lease in leases[::100])


def test_estimated_renewals_are_right_within_one(locks: Open, server: EmbeddedServer) -> None:
    """The store does not count them; the lease does."""
    face = locks(server.url)
    lease = face.acquire("a", ttl=6)
    for count in (0, 1, 2):
        wait_until(lambda count=count: lease.renewals >= count, 30, what=f"{count} renewals")
        [holder] = face.info("a").holders
        assert abs(holder.renewals - lease.renewals) <= 1


def test_renewals_block_the_server_briefly(locks: Open, server: EmbeddedServer) -> None:
    """Others wait while a script runs: even the longest of them stays in the milliseconds."""
    face = locks(server.url)
    leases = [face.acquire(f"a-lock-with-a-longer-name-{n}", ttl=3) for n in range(1000)]
    for setting, value in (("slowlog-log-slower-than", 0), ("slowlog-max-len", 1000)):
        server.ask("CONFIG", "SET", setting, value)
    wait_until(lambda: all(lease.renewals >= 3 for lease in leases), 30)
    took = [
        micros for _, _, micros, words, *_ in server.ask("SLOWLOG", "GET", -1) if len(words) > 30
    ]
    # By the clock, so the machine's other work is in it: most calls say what a call takes.
    assert len(took) >= 3
    assert median(took) < 10_000, took


def test_keeper_is_one_native_thread(valkey: EmbeddedServer) -> None:
    """However many leases, faces and event loops; and none before the first lease."""
    counted = run_python(
        f"""
        import asyncio, os, threading
        from celery_locks import AsyncLocks, Locks

        def tasks():
            return len(os.listdir("/proc/self/task"))

        before = tasks()
        several = [Locks.from_url("{valkey.url}") for _ in range(3)]
        quiet = tasks()
        leases = [locks.acquire(f"one{{n}}-{{i}}", ttl=1) for n, locks in enumerate(several)
                  for i in range(5)]

        async def more():
            locks = AsyncLocks.from_url("{valkey.url}")
            lease = await locks.acquire("async", ttl=1)
            while lease.renewals < 2:
                await asyncio.sleep(0.01)
            await lease.release()
            await locks.close()

        asyncio.run(more())
        print(before, quiet, tasks(), threading.active_count(), {{lease.state for lease in leases}})
        """
    )
    assert counted.split(maxsplit=4)[:4] == ["1", "1", "2", "1"]
    assert "held" in counted


def test_process_ends_though_it_holds(valkey: EmbeddedServer) -> None:
    """The keeper must not keep a process alive, nor disturb its end."""
    output = run_python(
        f"""
        from celery_locks import Locks
        Locks.from_url("{valkey.url}").acquire("unreleased", ttl=1)
        print("done")
        """
    )
    assert output == "done"


def test_busy_interpreter_does_not_lose_its_locks(locks: Open, valkey: EmbeddedServer) -> None:
    """Threads that compute share the GIL with the renewer.

    A renewal needs the GIL some ten times and waits for each of the threads each time: on a busy
    machine that takes most of a second.
    """
    valkey.flush()
    lease = locks(valkey.url).acquire("busy", ttl=4)
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            sum(range(10000))

    workers = [threading.Thread(target=compute) for _ in range(4)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: lease.renewals >= 3 or lease.state is State.LOST, 30)
        lease.check()
    finally:
        ends.set()
        for worker in workers:
            worker.join()


def test_one_lost_lease_leaves_the_batch_alone(
    locks: Open, server: EmbeddedServer, news: News
) -> None:
    face = locks(server.url)
    leases = [face.acquire(f"lock{n}", ttl=1.5) for n in range(20)]
    server.ask("DEL", "celery-locks:{0}:h:lock7")
    news.wait(leases[7], "lost")
    rest = leases[:7] + leases[8:]
    wait_until(lambda: all(lease.renewals >= 3 for lease in rest), 15)
    for lease in rest:
        lease.check()
    with pytest.raises(LeaseLost):
        leases[7].check()
    assert renewer.tokens >= {lease.token for lease in rest}
    assert leases[7].token not in renewer.tokens


def test_acquire_and_release_leave_no_pipe_or_socket_behind(
    locks: Open, valkey: EmbeddedServer
) -> None:
    face = locks(valkey.url)
    face.release(face.acquire("first", ttl=5))

    def open_files() -> int:
        return len(os.listdir(Path("/proc/self/fd")))

    before = open_files()
    for _ in range(50):
        face.release(face.acquire("again", ttl=5))
    # Background threads of other tests in this process may open a connection meanwhile.
    assert open_files() < before + 10


def test_thread_that_cannot_start_is_no_silent_keeper(valkey: EmbeddedServer) -> None:
    """At the limit of threads the first lease fails loudly, and a later one starts the keeper."""
    run_python(
        f"""
        import _thread, time
        from celery_locks import Locks

        def refuse(*_):
            raise RuntimeError("can't start new thread")

        locks = Locks.from_url("{valkey.url}")
        start, _thread.start_new_thread = _thread.start_new_thread, refuse
        try:
            locks.acquire("first", ttl=1)
        except RuntimeError:
            _thread.start_new_thread = start
        lease = locks.acquire("second", ttl=1)
        ends = time.monotonic() + 15
        while lease.renewals < 3:
            assert time.monotonic() < ends, "nobody renews"
            time.sleep(0.01)
        """
    )


def test_dead_server_costs_a_living_one_nothing(
    locks: Open, valkey: EmbeddedServer, proxy: Proxy, news: News
) -> None:
    """Leases on both, one thread: the silent one is asked last and cannot use up the time."""
    # A ttl that leaves the living one more than a twentieth of a second on a busy machine.
    dead = [locks(proxy.url).acquire(f"dead{n}", ttl=4) for n in range(4)]
    alive = locks(valkey.url).acquire("alive", ttl=4)
    proxy.black_hole()
    for lease in dead:
        news.wait(lease, "lost", 8)
    assert alive.state is State.HELD
    assert not {"lost", "suspended"} & set(news.of(alive))
