"""The server's time for a lock with and without the guard after a loss, in turns."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.effort import FULL, Effort
from benchmarks.report import Report
from celery_locks import Holder, Locks
from celery_locks.store.commands.replies import Renewal
from celery_locks.store.effects import Call
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

CALLS, ROUNDS = 500, 41
SETTINGS = {"on": True, "off": False}
STEPS = ("acquire", "renew", "release")


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "guard",
        "The server's time for one call, with `guard_after_loss` on and off (µs)",
        ("", "on", "off", "difference"),
    )
    locks = {
        name: Locks.from_url(server.url, prefix=f"guard-{name}", guard_after_loss=guards)
        for name, guards in SETTINGS.items()
    }
    taken: dict[tuple[str, str], list[float]] = {}
    for number in range(effort.count(ROUNDS)):
        for name in sorted(locks, reverse=bool(number % 2)):
            for step, micros in _round(server, locks[name]).items():
                taken.setdefault((step, name), []).append(micros)
    for step in STEPS:
        on, off = (median(taken[step, name]) for name in SETTINGS)
        report.add(step, on, off, on - off)
    rise = median(taken["acquire", "on"]) / median(taken["acquire", "off"]) - 1
    report.at_most("an acquire takes longer by", 10, 100 * rise, " %")
    return report


def _round(server: EmbeddedServer, locks: Locks) -> dict[str, float]:
    """Return the microseconds of each step: acquire, renew and release some locks, each alone."""
    commands = locks.commands
    makers: dict[str, Callable[[str], Call]] = {
        "acquire": lambda name: commands.acquire(LockSpec(name), name, Holder()),
        "renew": lambda name: commands.renew([Renewal(name, name, 30.0)], 3.0),
        "release": lambda name: commands.release(name, name),
    }
    return {step: _micros(server, locks, make) for step, make in makers.items()}


def _micros(server: EmbeddedServer, locks: Locks, make: Callable[[str], Call]) -> float:
    server.ask("CONFIG", "RESETSTAT")
    for number in range(CALLS):
        locks.perform(make(f"a{number}"))
    stats = server.info("commandstats")["cmdstat_evalsha"]
    fields = dict(field.split("=") for field in stats.split(","))
    return float(fields["usec_per_call"])
