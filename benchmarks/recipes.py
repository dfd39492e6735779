"""take, drain and claim against the plain commands with redis-py.

The plain commands on our own connection, which is faster than redis-py's, are shown too: the
difference to the recipes is the cost of the script, its record and its saved reply.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from benchmarks.timing import MICROSECOND, in_turns, p50, p99
from celery_locks import Locks
from celery_locks.recipes import Inventory, claim, drain
from celery_locks.store.effects import Call
from celery_locks.store.scripts import PlainCommand
from tests.servers.embedded import EmbeddedServer

ROUNDS, EACH, BATCH = 40, 50, 10
CALLS = ROUNDS * EACH + 1
NEAR = ", our connection"
PAIRS = {"take": "SPOP", "drain of 10": "LPOP 10", "claim": "SET NX GET"}


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "recipes",
        "Recipes against the bare commands",
        ("", "p50 µs", "p99 µs", "× bare"),
    )
    locks = Locks.from_url(server.url)
    candidates = {**_bare(server), **_bare_on_ours(server, locks), **_ours(server, locks)}
    taken = in_turns(candidates, effort.count(ROUNDS), EACH)
    for ours, bare in PAIRS.items():
        for name in (bare, bare + NEAR, ours):
            ratio = p50(taken[name]) / p50(taken[bare])
            report.add(name, p50(taken[name]) / MICROSECOND, p99(taken[name]) / MICROSECOND, ratio)
        report.at_most(f"{ours} against {bare}", 1.5, p50(taken[ours]) / p50(taken[bare]), " ×")
    locks.close()
    report.notes.append(
        "Beyond the plain command: take records who has what and gives a user one item, "
        "drain and claim give a repeated call (after a lost reply) the same reply."
    )
    return report


def _bare(server: EmbeddedServer) -> dict[str, Callable[[], object]]:
    client, numbers = server.client(), count()
    client.sadd("bench:stock", *range(CALLS))
    client.rpush("bench:list", *range(CALLS * BATCH))
    return {
        "SPOP": lambda: client.spop("bench:stock"),
        "LPOP 10": lambda: client.lpop("bench:list", BATCH),
        "SET NX GET": lambda: client.set(
            f"bench:{next(numbers)}", "job-1", nx=True, get=True, px=86_400_000
        ),
    }


def _bare_on_ours(server: EmbeddedServer, locks: Locks) -> dict[str, Callable[[], object]]:
    with server.client() as client:
        client.sadd("bench:stock-2", *range(CALLS))
        client.rpush("bench:list-2", *range(CALLS * BATCH))
    numbers = count()

    def call(command: PlainCommand, key: str, *args: str | int) -> object:
        return locks.perform(Call(command, key, (key,), args, lambda reply: reply, 3.0))

    spop, lpop, put = PlainCommand("SPOP"), PlainCommand("LPOP"), PlainCommand("SET")
    return {
        f"SPOP{NEAR}": lambda: call(spop, "bench:stock-2"),
        f"LPOP 10{NEAR}": lambda: call(lpop, "bench:list-2", BATCH),
        f"SET NX GET{NEAR}": lambda: call(
            put, f"bench-2:{next(numbers)}", "job-1", "NX", "GET", "PX", 86_400_000
        ),
    }


def _ours(server: EmbeddedServer, locks: Locks) -> dict[str, Callable[[], object]]:
    inventory, buyers, requests = Inventory(locks), count(), count()
    inventory.stock("bench", [f"{number}" for number in range(CALLS)])
    with server.client() as client:
        client.rpush("bench:ours", *range(CALLS * BATCH))
    return {
        "take": lambda: inventory.take("bench", f"{next(buyers)}"),
        "drain of 10": lambda: drain(locks, "bench:ours", BATCH),
        "claim": lambda: claim(locks, f"{next(requests)}", "job-1"),
    }
