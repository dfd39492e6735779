"""Run seeds, and say for each what happened."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers.embedded import EmbeddedServer
from tests.simulation.checks import Violation
from tests.simulation.patches import Current, simulated_core
from tests.simulation.server import SimulatedServer
from tests.simulation.variants import CORRECT, Variant
from tests.simulation.world import World


@dataclass(frozen=True)
class Outcome:
    """One seed: its steps, a checksum of all that happened, and the broken promise if there is."""

    seed: int
    steps: int
    entered: int
    virtual_seconds: float
    digest: int
    violation: str = ""


class Simulation:
    """Runs one seed after the other on one server."""

    def __init__(self, server: SimulatedServer, current: Current) -> None:
        self._server = server
        self._current = current

    def run(self, seed: int, variant: Variant = CORRECT) -> Outcome:
        violation = ""
        with variant.applied():
            world = World(seed, self._server, self._current, variant.change)
            try:
                world.run()
            except Violation as error:
                violation = str(error)
        scheduler = world.scheduler
        entered = world.checks.entered
        return Outcome(seed, scheduler.steps, entered, scheduler.time, scheduler.digest, violation)

    def find(self, variant: Variant, seeds: range) -> Outcome | None:
        """Return the first of the seeds that convicts a broken variant."""
        outcomes = (self.run(seed, variant) for seed in seeds)
        return next((outcome for outcome in outcomes if outcome.violation), None)

    def run_for(self, seconds: float, first_seed: int) -> Iterator[Outcome]:
        """Run seeds, at least one, until the time is over or one of them fails."""
        until = time.monotonic() + seconds
        for seed in itertools.count(first_seed):
            outcome = self.run(seed)
            yield outcome
            if outcome.violation or time.monotonic() >= until:
                return


@contextmanager
def simulation() -> Iterator[Simulation]:
    """Start the server of the simulations."""
    with EmbeddedServer() as embedded, simulated_core() as current:
        server = SimulatedServer(embedded)
        try:
            yield Simulation(server, current)
        finally:
            server.close()
