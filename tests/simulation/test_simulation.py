"""The simulation: quiet about the real code, loud about broken code, and repeatable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.run import Simulation, simulation
from tests.simulation.variants import BROKEN, Variant

# Seconds of a short run; `make simulate SECONDS=3600` is the long one.
_SHORT = 6.0
# Within these every broken variant is found.
_SEEDS = range(1, 200)
_REPLAYED = 7


@pytest.fixture(scope="module")
def simulated(no_server_left: None) -> Iterator[Simulation]:
    with simulation() as made:
        yield made


def test_simulation_breaks_no_promise(simulated: Simulation) -> None:
    """A failing seed is a bug that users would meet once in years, and it can be repeated."""
    for outcome in simulated.run_for(_SHORT, first_seed=1):
        assert not outcome.violation, f"make simulate SECONDS=0 SEED={outcome.seed}"
        assert outcome.entered


@pytest.mark.parametrize("variant", BROKEN, ids=lambda variant: variant.name.replace(" ", "-"))
def test_simulation_finds_broken_variant(simulated: Simulation, variant: Variant) -> None:
    """A simulation that does not notice a broken lock proves nothing about a correct one."""
    assert simulated.find(variant, _SEEDS), f"{variant.name}: not found in {len(_SEEDS)} seeds"


def test_simulation_repeats_seed_exactly(simulated: Simulation) -> None:
    """A seed in a bug report is worth something only if it does the same on another machine."""
    outcome = simulated.run(_REPLAYED)
    assert simulated.run(_REPLAYED + 1).digest != outcome.digest
    assert simulated.run(_REPLAYED) == outcome
    code = (
        "from tests.simulation.run import simulation\n"
        f"with simulation() as made: print(made.run({_REPLAYED}).digest)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(run.stdout) == outcome.digest
