"""The lock server stops, dies, forgets or refuses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.nemesis.faults.fault import LONG, Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig
from tests.servers.subprocesses import new_directory
from tests.support.waiting import wait_until

# Before a cache can push a lock out, it has to turn over faster than locks are renewed.
_CACHE_BYTES = 1_000_000
_CACHE_ENTRY = "x" * 1000


@contextmanager
def stop_server(rig: Rig, holder: Run) -> Iterator[None]:
    rig.lock_server.pause()
    yield
    rig.lock_server.resume()


@contextmanager
def kill_server(rig: Rig, holder: Run) -> Iterator[None]:
    """With the data on disk if the rig's server has it there, else it comes back empty."""
    rig.lock_server.kill()
    yield
    rig.lock_server.restart()


@contextmanager
def flushall(rig: Rig, holder: Run) -> Iterator[None]:
    rig.lock_server.flush()
    yield


@contextmanager
def script_flush(rig: Rig, holder: Run) -> Iterator[None]:
    rig.lock_server.ask("SCRIPT", "FLUSH", "SYNC")
    yield


@contextmanager
def out_of_memory(rig: Rig, holder: Run) -> Iterator[None]:
    rig.lock_server.ask("CONFIG", "SET", "maxmemory", "1")
    yield
    rig.lock_server.ask("CONFIG", "SET", "maxmemory", "0")


@contextmanager
def eviction(rig: Rig, holder: Run) -> Iterator[None]:
    """A busy cache on the same server, which may evict any key."""
    server = rig.lock_server
    used = int(server.info("memory")["used_memory"])
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.ask("CONFIG", "SET", "maxmemory", used + _CACHE_BYTES)
    over = threading.Event()
    cache = threading.Thread(target=_fill, args=(rig, over), name="nemesis-cache")
    cache.start()
    try:
        yield
    finally:
        over.set()
        cache.join()
    server.ask("CONFIG", "SET", "maxmemory", "0")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    with server.client() as client:
        client.delete(*client.scan_iter("cache:*", count=1000))


def _fill(rig: Rig, over: threading.Event) -> None:
    with rig.lock_server.client() as client:
        number = 0
        while not over.wait(0.01):
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(100):
                    number += 1
                    pipeline.set(f"cache:{number}", _CACHE_ENTRY)
                pipeline.execute()


@contextmanager
def disk_full(rig: Rig, holder: Run) -> Iterator[None]:
    """Its snapshots fail (the directory is gone), so it refuses every write with MISCONF."""
    server = rig.lock_server
    [_, before] = server.ask("CONFIG", "GET", "dir")  # type: ignore[misc]
    directory = new_directory()
    server.ask("CONFIG", "SET", "dir", str(directory))
    directory.rmdir()
    server.ask("CONFIG", "SET", "save", "3600 1000000")
    server.ask("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    server.ask("CONFIG", "SET", "save", "")
    server.ask("CONFIG", "SET", "dir", str(before))


@contextmanager
def max_clients(rig: Rig, holder: Run) -> Iterator[None]:
    """The workers' connections are closed, and others take all that the server allows."""
    server = rig.lock_server
    with ExitStack() as stack:
        operator = stack.enter_context(server.client(single_connection_client=True))
        operator.config_set("maxclients", 20)
        operator.execute_command("CLIENT", "KILL", "SKIPME", "yes")
        for _ in range(20):
            stack.enter_context(socket.create_connection((server.host, server.port)))
        wait_until(lambda: operator.info("clients")["connected_clients"] >= 20)
        yield
        operator.config_set("maxclients", 10_000)


FAULTS = (
    Fault("stop_server", "the lock server is stopped", stop_server, LONG, cuts_off=True),
    Fault(
        "kill_server",
        "`kill -9` of the lock server, which has its data on disk",
        kill_server,
        1.5,
        "durable",
        cuts_off=True,
    ),
    Fault(
        "kill_server_in_memory",
        "`kill -9` of the lock server, which comes back empty",
        kill_server,
        1.0,
        forgets="at its end",
        cuts_off=True,
    ),
    Fault("flushall", "`FLUSHALL`", flushall, forgets="at once"),
    Fault("script_flush", "`SCRIPT FLUSH`", script_flush),
    Fault("out_of_memory", "out of memory, `noeviction`", out_of_memory, LONG),
    Fault("eviction", "eviction, `allkeys-lru`", eviction, LONG, forgets="now and then"),
    Fault("disk_full", "disk full (`MISCONF`)", disk_full, LONG, cuts_off=True),
    Fault("max_clients", "`maxclients` reached", max_clients, LONG, cuts_off=True),
)
