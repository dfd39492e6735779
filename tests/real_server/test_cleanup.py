"""Names that lapsed long ago are deleted in the background, though nobody lists or acquires."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from celery_locks import Locks
from celery_locks.clock import now
from celery_locks.core import cleanup_job
from celery_locks.core.cleanup_job import CleanupTargets, ServerCleanup
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.locks import PAGE
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until

ROOT = "celery-locks:{0}:"
NAMES = 3 * PAGE


@pytest.fixture
def locks(server: EmbeddedServer) -> Iterator[Locks]:
    made = Locks.from_url(server.url)
    yield made
    made.close()


def leave_names(server: EmbeddedServer) -> None:
    """Do what dead processes do: leave names that lapsed more than a minute ago."""
    old = (time.time() - 61) * 1000
    with server.client() as client:
        for number in range(NAMES):
            client.zadd(f"{ROOT}h:old{number}", {f"t{number}": old})
            client.zadd(f"{ROOT}index", {f"old{number}": old})
            client.hset(f"{ROOT}records", f"t{number}", "7 1 30000 1 - 1 - 0 {}")


def names_left(server: EmbeddedServer) -> int:
    with server.client() as client:
        return len(client.keys(f"{ROOT}h:old*"))


def calls_to(server: EmbeddedServer, command: str) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def jobs(all_locks: list[Locks]) -> list[ServerCleanup]:
    """Return the job of each process: its own targets, server and connection."""
    made = []
    for locks in all_locks:
        targets, store = CleanupTargets(), locks._store.store_for_thread()
        targets.add(store, locks.commands)
        made.append(ServerCleanup(store.server.addresses, targets, lambda calls: 3.0))
    return made


def test_process_that_holds_a_lock_deletes_lapsed_names(
    server: EmbeddedServer, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup_job, "_INTERVAL", 0.1)
    leave_names(server)
    with locks.hold("held"):
        wait_until(lambda: names_left(server) == 0, 20, what="the names to disappear")
        with server.client() as client:
            assert client.zrange(f"{ROOT}index", 0, -1) == [b"held"]
            assert client.hlen(f"{ROOT}records") == 1


def test_process_that_has_released_its_locks_deletes_them_too(server: EmbeddedServer) -> None:
    """It is idle, and a process that used locks once is the only one left."""
    program = f"""
import time
from celery_locks import Locks
from celery_locks.clock import now
from celery_locks.core import cleanup_job
cleanup_job._INTERVAL = 0.1
locks = Locks.from_url({server.url!r})
locks.acquire("a").release()
print("idle", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"idle\n"
        leave_names(server)
        wait_until(lambda: names_left(server) == 0, 20, what="the names to disappear")
    finally:
        process.kill()
        process.communicate()


def test_closed_locks_are_not_connected_again(server: EmbeddedServer) -> None:
    locks = Locks.from_url(server.url)
    lease = locks.acquire("a")
    assert lease
    lease.release()
    store = locks._store.store_for_thread()
    assert renewer._cleanup_targets.of_server(store.server.addresses)
    locks.close()
    assert not renewer._cleanup_targets.of_server(store.server.addresses)


def test_crowd_of_processes_shares_the_work(server: EmbeddedServer) -> None:
    """Who looks first deletes the names; the others find nothing and pay one short call each."""
    crowd = [Locks.from_url(server.url) for _ in range(25)]
    leave_names(server)
    for job in jobs(crowd):
        job.run()
    assert names_left(server) == 0
    looks, deletes = 2 * len(crowd), NAMES // PAGE
    assert calls_to(server, "zrangebyscore") == looks
    assert calls_to(server, "eval") + calls_to(server, "evalsha") == 1 + deletes  # 1: NOSCRIPT
    assert calls_to(server, "zrem") == 2 * NAMES, "each holder and each name was deleted once"
    for locks in crowd:
        locks.close()


def test_looks_are_spread(server: EmbeddedServer, locks: Locks) -> None:
    """Processes that a deployment starts together do not look together."""
    dues = sorted(job._next - now() for job in jobs([locks] * 200))
    assert dues[-1] - dues[0] > cleanup_job._INTERVAL / 2


def test_every_shard_has_its_turn(server: EmbeddedServer) -> None:
    locks = Locks.from_url(server.url, shards=4)
    with server.client() as client:
        for root in locks.commands.roots:
            client.zadd(f"{root}index", {"old": 1.0})
        [job] = jobs([locks])
        for _ in range(4):
            job.run()
        assert client.keys("celery-locks:*") == []
    locks.close()


def test_frozen_server_costs_no_error(server: EmbeddedServer, locks: Locks) -> None:
    """The next look, or another process, does it."""
    [job] = jobs([locks])
    server.kill()
    job.run()
    assert job.due > now()
