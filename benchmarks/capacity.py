"""What a lock server does in a second, and what ``plan.py`` calculates a capacity from.

Raw sockets send calls that are packed already, one on each connection, and read the replies: so
the client takes little of the two cores, and the server is the one that is busy. The processor time
of the server for a call is its own cost, whatever else the machine does.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from typing import NamedTuple

from benchmarks.effort import FULL, Effort
from benchmarks.filling import TTL, holder_of, name_of, token_of
from benchmarks.renewal import acquired, tick_of
from benchmarks.report import Report
from benchmarks.servertime import processor_ms
from benchmarks.tasks import commands_a_task, on_separate_locks
from celery_locks import Locks
from celery_locks.integration.waking import POLL_EVERY
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.commands.parking import ParkCommands
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

CONNECTIONS = (1, 10, 100, 1000)
SECONDS, RENEWED, ROUNDS, POLLS = 4.0, 1000, 20, 5000
CHILDREN = 2
# A third of the default ttl, after which the main process renews, and a little more.
HOLD_SECONDS = 12.0


class Load(NamedTuple):
    """What the server did for clients that acquire and release as fast as it answers."""

    calls_per_second: float
    busy: float
    acquire_us: float
    release_us: float
    bytes_per_call: float


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    columns = ("connections", "calls a second", "server busy", "acquire, CPU µs", "release, CPU µs")
    report = Report("capacity", "One lock server, acquire and release at full speed", columns)
    seconds = 0.5 if effort.is_quick else SECONDS
    with closing(Locks.from_url(server.url)) as locks:
        renew_us, poll_us = _renew_us(server, locks, effort), _poll_us(server, locks, effort)
    loads = {count: _load(server, count, seconds) for count in effort.sizes(*CONNECTIONS)}
    for count, load in loads.items():
        calls = f"{load.calls_per_second:,.0f}"
        report.add(f"{count:,}", calls, f"{load.busy:.0%}", load.acquire_us, load.release_us)
    most = loads[max(loads)]
    report.data["inputs"] = {
        "calls_per_second": max(load.calls_per_second for load in loads.values()),
        "acquire_us": most.acquire_us,
        "release_us": most.release_us,
        "renew_us": renew_us,
        "poll_us": poll_us,
        "poll_seconds": POLL_EVERY,
        "bytes_per_call": most.bytes_per_call,
        **_worker_costs(server, effort),
    }
    _describe(report)
    return report


def _describe(report: Report) -> None:
    inputs = report.data["inputs"]
    report.notes.append(
        f"A lease that is renewed costs the server {inputs['renew_us']:.1f} µs of processor time, "
        f"a poll for parked tasks of a worker {inputs['poll_us']:.1f} µs; "
        f"a locked task makes {inputs['calls_per_task']:.2f} calls of "
        f"{inputs['bytes_per_call']:.0f} bytes on average, with the reply; a prefork worker has "
        f"{inputs['connections_beside_children']} connections beside one for each child. "
        "The client shares the two cores with the server."
    )


def _load(server: EmbeddedServer, connections: int, seconds: float) -> Load:
    commands = LockCommands()
    acquires = [
        commands.acquire(LockSpec(name_of(n), TTL), token_of(n), holder_of(n)).packed
        for n in range(connections)
    ]
    releases = [commands.release(name_of(n), token_of(n)).packed for n in range(connections)]
    with ExitStack() as stack:
        address = server.host, server.port
        sockets = [stack.enter_context(socket.create_connection(address)) for _ in acquires]
        began, rounds, spent = time.perf_counter(), 0, [0.0, 0.0]
        received = 0
        while time.perf_counter() < began + seconds:
            for number, packed in enumerate((acquires, releases)):
                before = processor_ms(server.pid)
                received += _exchange(sockets, packed)
                spent[number] += processor_ms(server.pid) - before
            rounds += 1
        taken = time.perf_counter() - began
    calls = rounds * connections
    sent = sum(map(len, acquires + releases)) * rounds
    micros = [each * 1e3 / calls for each in spent]
    return Load(2 * calls / taken, sum(spent) / 1e3 / taken, *micros, (sent + received) / calls / 2)


def _exchange(sockets: list[socket.socket], packed: list[bytes]) -> int:
    """Send a call on each connection, then read all replies; return how many bytes came."""
    for connection, data in zip(sockets, packed, strict=True):
        connection.sendall(data)
    received = 0
    for connection in sockets:
        reply = connection.recv(4096)
        # A number is a grant, or a release of our own lock.
        assert reply.startswith(b":"), reply
        assert reply.endswith(b"\r\n"), reply
        received += len(reply)
    return received


def _renew_us(server: EmbeddedServer, locks: Locks, effort: Effort) -> float:
    """Renew many leases in batches, and load the scripts that the sockets call."""
    leases = acquired(locks, RENEWED)
    tick = tick_of(locks.store_for_thread(), locks, leases)
    tick()
    before, rounds = processor_ms(server.pid), effort.count(ROUNDS)
    for _ in range(rounds):
        tick()
    spent = (processor_ms(server.pid) - before) / rounds
    for lease in leases:
        lease.release()
    return spent * 1e3 / RENEWED


def _poll_us(server: EmbeddedServer, locks: Locks, effort: Effort) -> float:
    """Poll for parked tasks as every worker does; there are none."""
    call = ParkCommands(locks.commands).poll(locks.commands.roots[0])
    locks.perform(call)
    before, polls = processor_ms(server.pid), effort.count(POLLS)
    for _ in range(polls):
        locks.perform(call)
    return (processor_ms(server.pid) - before) * 1e3 / polls


def _worker_costs(server: EmbeddedServer, effort: Effort) -> dict[str, float]:
    """Count the calls of a task, and the connections when all children hold a renewed lock."""
    with on_separate_locks(server) as (contender, locks), locks.client() as client:
        calls = commands_a_task(contender, locks)
        contender.ask("held", CHILDREN, 1.0 if effort.is_quick else HOLD_SECONDS)
        own = 1
        connections = len(client.client_list()) - own
    return {"calls_per_task": calls, "connections_beside_children": connections - CHILDREN}
