"""Renewing 1,000 leases: the keeper's way, in batches, against one call each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.report import Report
from benchmarks.slowlog import call_times_ms
from benchmarks.timing import in_turns, p50
from celery_locks import Lease, Locks
from celery_locks.store.verbs import RENEW_BATCH, Renewal
from celery_locks.testing.servers import EmbeddedServer

LEASES, ROUNDS = 1000, 9
TTL = 600.0
TICK, SERIAL, REDIS_PY = (
    "celery-locks, one tick",
    "celery-locks, one by one",
    "redis-py Lock.extend, one by one",
)


def run(server: EmbeddedServer) -> Report:
    report = Report(
        "renewal",
        f"Renewing {LEASES:,} leases ({RENEW_BATCH} a call)",
        ("", "p50 ms", "× one tick"),
    )
    locks = Locks.from_url(server.url)
    leases = list(_leases(locks))
    taken = in_turns(_candidates(server, locks, leases), ROUNDS, 1)
    for name, times in taken.items():
        report.add(name, p50(times) * 1e3, p50(times) / p50(taken[TICK]))
    _judge(report, {name: p50(times) for name, times in taken.items()})
    calls = call_times_ms(server, lambda: [_tick(locks, leases) for _ in range(10)])
    report.add("server's time for one call", p50(calls), "")
    report.at_most("the longest single call, by the server", 5, calls[-1], " ms")
    for lease in leases:
        lease.release()
    return report


def _judge(report: Report, middle: dict[str, float]) -> None:
    report.at_least("one tick against our own one by one", 15, middle[SERIAL] / middle[TICK], " ×")
    report.at_least("one tick against redis-py's", 15, middle[REDIS_PY] / middle[TICK], " ×")


def _leases(locks: Locks) -> Iterator[Lease]:
    for number in range(LEASES):
        lease = locks.acquire(f"import:customer-{number}", ttl=TTL)
        assert lease is not None
        yield lease


def _candidates(
    server: EmbeddedServer, locks: Locks, leases: list[Lease]
) -> dict[str, Callable[[], object]]:
    return {
        TICK: lambda: _tick(locks, leases),
        SERIAL: lambda: [lease.renew() for lease in leases],
        REDIS_PY: _redis_py(server),
    }


def _tick(locks: Locks, leases: list[Lease]) -> None:
    """What the keeper does when all of them are due."""
    for start in range(0, len(leases), RENEW_BATCH):
        batch = leases[start : start + RENEW_BATCH]
        renewals = [Renewal(lease.name, lease.token, lease.ttl) for lease in batch]
        sent_at = time.monotonic()
        lost = locks.perform(locks.verbs.renew(renewals, 3.0))
        assert not lost
        for lease in batch:
            lease.renewed(sent_at)


def _redis_py(server: EmbeddedServer) -> Callable[[], object]:
    client = server.client()
    held = [client.lock(f"bench:extend-{number}", timeout=TTL) for number in range(LEASES)]
    for lock in held:
        lock.acquire(blocking=False)
    return lambda: [lock.extend(TTL, replace_ttl=True) for lock in held]
