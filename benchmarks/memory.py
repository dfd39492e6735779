"""The memory of a held lock on the server, and the cost of listing many locks."""

from __future__ import annotations

import hashlib
import uuid

from benchmarks.report import Report
from benchmarks.servertime import Watched, watch
from benchmarks.timing import MICROSECOND, in_turns, p50
from celery_locks import Holder, Locks
from celery_locks.store import scripts
from celery_locks.store.calls import run_sync
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

HELD, FEW, MANY = 10_000, 100, 100_000
TTL = 3600.0
COMMANDS = LockCommands()


def run(server: EmbeddedServer) -> Report:
    report = Report("memory", "Server memory, and listing", ("", "measured"))
    _memory(report, server)
    with EmbeddedServer() as small:
        _listing(report, server, small)
    return report


def _memory(report: Report, server: EmbeddedServer) -> None:
    # Load the scripts first: they are no cost of a lock.
    _take(server, 1)
    _give_back(server, 1)
    before = _used(server)
    _take(server, HELD)
    each = (_used(server) - before) / HELD
    _give_back(server, HELD)
    left, keys = _used(server) - before, server.ask("KEYS", "*")
    report.add(f"bytes a held lock, {HELD:,} held", round(each))
    report.add("bytes more in use after all were released", left)
    report.add("keys left after all were released", _listed(keys))
    report.at_most("a held lock", 0.8, each / 1000, " kB")
    report.at_most(
        "keys left after release (the fence)", 1, len(keys) if isinstance(keys, list) else 0
    )


def _used(server: EmbeddedServer) -> int:
    return int(server.info("memory")["used_memory"])


def _listed(keys: object) -> str:
    return ", ".join(str(key) for key in keys) if isinstance(keys, list) and keys else "none"


def _take(server: EmbeddedServer, count: int) -> None:
    """Acquire as fast as possible: many calls in one pipeline, no lease and no renewer."""
    with server.client() as client:
        client.script_load(scripts.ACQUIRE.text)
        for start in range(0, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(start + 1000, count)):
                call = COMMANDS.acquire(
                    LockSpec(_name(number), TTL), _token(number), _holder(number)
                )
                keys = (*scripts.ACQUIRE.shard_keys(call.root), *call.keys)
                pipeline.evalsha(scripts.ACQUIRE.sha, len(keys), *keys, *call.args)
            assert all(isinstance(fence, int) for fence in pipeline.execute())


def _give_back(server: EmbeddedServer, count: int) -> None:
    locks = Locks.from_url(server.url)
    assert all(locks.perform(COMMANDS.release(_name(n), _token(n))) for n in range(count))
    locks.close()


def _name(number: int) -> str:
    return f"invoices.sync:customer={number:06}"


def _token(number: int) -> str:
    return hashlib.sha1(_name(number).encode()).hexdigest()[:24]


def _holder(number: int) -> Holder:
    """Return a holder as a worker writes it."""
    return Holder(
        task_id=str(uuid.uuid4()),
        task="shop.tasks.sync_invoices",
        worker=f"celery@worker-{number % 8}.internal",
        host=f"worker-{number % 8}.internal",
        pid=4242 + number % 16,
    )


def _listing(report: Report, server: EmbeddedServer, small: EmbeddedServer) -> None:
    few, many = Locks.from_url(small.url), Locks.from_url(server.url)
    _take(small, FEW)
    _take(server, MANY)
    taken = in_turns({"few": lambda: _first_page(few), "many": lambda: _first_page(many)}, 20, 5)
    first = {name: p50(times) for name, times in taken.items()}
    watched = Watched(server, many.perform)
    times = watch(server, watched, lambda: _list_all(watched))
    report.add(f"first page with {FEW} locks, p50 µs", round(first["few"] / MICROSECOND))
    report.add(f"first page with {MANY:,} locks, p50 µs", round(first["many"] / MICROSECOND))
    report.at_most("first page with many against few", 2, first["many"] / first["few"], " ×")
    for what, ms in times.rows():
        report.add(what, ms)
    report.at_most("the longest page of a full listing, processor time", 5, times.longest, " ms")


def _first_page(locks: Locks) -> None:
    assert locks.run(locks.commands.page()).locks


def _list_all(watched: Watched) -> None:
    cursor, seen = "", 0
    while True:
        page = run_sync(COMMANDS.page(cursor), watched.perform)
        cursor, seen = page.cursor, seen + len(page.locks)
        if not cursor:
            break
    assert seen == MANY
