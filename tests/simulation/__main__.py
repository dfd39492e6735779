"""``python -m tests.simulation --seconds 3600 --seed 1``: seeds from 1 on, until the time is over.

With ``--seconds 0`` it runs one seed, which is how a failure is repeated.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from itertools import count

import fakeredis

from benchmarks.report import Report
from celery_locks import Locks
from celery_locks.types import Holder, LockSpec
from tests.servers.embedded import EmbeddedServer
from tests.simulation.run import Outcome, simulation
from tests.simulation.variants import BROKEN

_PRINT_EVERY = 10.0  # seconds
_STEPS_PER_MINUTE = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="0: one seed only")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    options = parser.parse_args()
    outcomes, took = run(options.seconds, options.seed)
    print(summary(outcomes, took))
    violation = outcomes[-1].violation
    if violation:
        print(
            f"FAILED: {violation}\nrepeat it with: make simulate SECONDS=0 SEED={outcomes[-1].seed}"
        )
        return 1
    if options.seconds:
        write(outcomes, took, options.seconds)
    return 0


def run(seconds: float, first_seed: int) -> tuple[list[Outcome], float]:
    """Run the seeds; return their outcomes and how long they took."""
    began = printed = time.monotonic()
    outcomes = []
    with simulation() as simulated:
        for outcome in simulated.run_for(seconds, first_seed):
            outcomes.append(outcome)
            if time.monotonic() - printed >= _PRINT_EVERY:
                printed = time.monotonic()
                print(summary(outcomes, printed - began), flush=True)
    return outcomes, time.monotonic() - began


def summary(outcomes: list[Outcome], took: float) -> str:
    steps = sum(outcome.steps for outcome in outcomes)
    seeds = f"seeds {outcomes[0].seed} to {outcomes[-1].seed}"
    return f"{seeds}: {steps} steps in {took:.0f} s, {steps / took * 60:.0f} steps a minute"


def write(outcomes: list[Outcome], took: float, seconds: float) -> None:
    """Write the figures of a run without failures, and those of the negative controls."""
    first, steps = outcomes[0].seed, sum(outcome.steps for outcome in outcomes)
    command = f"make simulate SECONDS={seconds:g} SEED={first}"
    report = Report("simulation", f"Simulation: `{command}`", ("what", "figure"))
    report.add("seeds", len(outcomes))
    report.add("steps", steps)
    report.add("holds", sum(outcome.entered for outcome in outcomes))
    report.add("virtual hours", sum(outcome.virtual_seconds for outcome in outcomes) / 3600)
    report.add("broken promises", 0)
    with EmbeddedServer() as server:
        report.add("µs a call on Valkey", call_time(Locks.from_url(server.url), 2000))
    in_memory = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    report.add("µs a call on fakeredis", call_time(in_memory, 50))
    with simulation() as simulated:
        for variant in BROKEN:
            found = next(it for it in count(1) if simulated.run(it, variant).violation)
            report.add(f"broken on purpose: {variant.name}; found by seed", found)
    report.notes.append("A step is one event: a call that arrives, a reply, the end of a sleep.")
    report.notes.append("Times depend on what else the machine does; the seeds do not.")
    report.at_least("steps a minute", _STEPS_PER_MINUTE, steps / took * 60)
    report.write({"Python": platform.python_version(), "cores": os.cpu_count() or 1})


def call_time(locks: Locks, pairs: int) -> float:
    """Return the microseconds of one acquire or release."""
    began, commands = time.perf_counter(), locks.commands
    for number in range(pairs):
        locks.perform(commands.acquire(LockSpec("a"), f"t{number}", Holder()))
        locks.perform(commands.release("a", f"t{number}"))
    took = time.perf_counter() - began
    locks.close()
    return took / (2 * pairs) * 1e6


if __name__ == "__main__":
    sys.exit(main())
