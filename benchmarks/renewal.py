"""Renew 1,000 leases: in batches, as the renewer does, against one call each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.servertime import Watched, watch
from benchmarks.timing import in_turns, p50
from celery_locks import Lease, Locks
from celery_locks.core.renewal_job import RenewalEntry
from celery_locks.core.renewer import Renewer
from celery_locks.store.commands.locks import RENEW_BATCH
from tests.servers.embedded import EmbeddedServer

LEASES, ROUNDS = 1000, 15
TTL = 600.0
TICK, SERIAL, REDIS_PY = (
    "celery-locks, one tick",
    "celery-locks, one by one",
    "redis-py Lock.extend, one by one",
)


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "renewal",
        f"Renewing {LEASES:,} leases ({RENEW_BATCH} a call)",
        ("", "p50 ms", "× one tick"),
    )
    locks = Locks.from_url(server.url)
    leases = acquired(locks, LEASES)
    taken = in_turns(_candidates(server, locks, leases), effort.count(ROUNDS), 1)
    for name, times in taken.items():
        report.add(name, p50(times) * 1e3, p50(times) / p50(taken[TICK]))
    _judge(report, {name: p50(times) for name, times in taken.items()})
    _add_server_time(report, server, locks, leases, effort.count(20))
    for lease in leases:
        lease.release()
    return report


def _judge(report: Report, middle: dict[str, float]) -> None:
    report.at_least("one tick against our own one by one", 15, middle[SERIAL] / middle[TICK], " ×")
    report.at_least("one tick against redis-py's", 15, middle[REDIS_PY] / middle[TICK], " ×")


def _add_server_time(
    report: Report, server: EmbeddedServer, locks: Locks, leases: list[Lease], rounds: int
) -> None:
    watched = Watched(server, locks.perform)
    watched.server = locks._store.server  # the renewer groups leases by it
    tick = tick_of(watched, locks, leases)
    times = watch(server, watched, lambda: [tick() for _ in range(rounds)])
    for what, ms in times.rows():
        report.add(what, ms, "")
    report.at_most("the longest single call, processor time", 5, times.longest, " ms")


def acquired(locks: Locks, count: int) -> list[Lease]:
    leases = [locks.acquire(f"import:customer-{number}", ttl=TTL) for number in range(count)]
    return [lease for lease in leases if lease is not None]


def _candidates(
    server: EmbeddedServer, locks: Locks, leases: list[Lease]
) -> dict[str, Callable[[], object]]:
    return {
        TICK: tick_of(locks.store_for_thread(), locks, leases),
        SERIAL: lambda: _one_by_one(leases),
        REDIS_PY: _redis_py(server),
    }


def tick_of(store: Any, locks: Locks, leases: list[Lease]) -> Callable[[], object]:
    """What the renewer's thread does when all of them are due, done in this one."""
    renewer = Renewer()
    entries = {lease.token: RenewalEntry(lease, store, locks.commands, 0.0) for lease in leases}
    renewer._entries.update(entries)
    [renewals, *_] = renewer._jobs_for(store.server.addresses)

    def tick() -> None:
        renewed = leases[-1].renewals
        for entry in entries.values():
            entry.due = 0.0
        renewals.run()
        assert leases[-1].renewals == renewed + 1

    return tick


def _one_by_one(leases: list[Lease]) -> None:
    for lease in leases:
        lease.renew()


def _redis_py(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()
    held = [client.lock(f"bench:extend-{number}", timeout=TTL) for number in range(LEASES)]
    for lock in held:
        lock.acquire(blocking=False)
    return lambda: [lock.extend(TTL, replace_ttl=True) for lock in held]
