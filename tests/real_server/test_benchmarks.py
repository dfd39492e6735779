"""The benchmarks run from their command line: a quick run, which is for development."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    done = bench("--quick", "growth.parking", "growth.rates", "--write", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_quick_results_say_that_they_are(quick: Path) -> None:
    """Nobody takes the figures of two rounds for published ones."""
    for name in ("growth-parking", "growth-rates"):
        assert "QUICK" in (quick / f"{name}.md").read_text().splitlines()[0]
        assert "QUICK" in json.loads((quick / f"{name}.json").read_text())["title"]


def test_tenants_wait_no_longer_behind_many_messages_than_behind_one(quick: Path) -> None:
    """What the documentation says of `fair_by`, counted in runs."""
    points = json.loads((quick / "growth-parking.json").read_text())["data"]["points"]
    assert [point[0] for point in points] == [1, 10, 100]
    assert {point[1] for point in points} == {9}


def test_quick_run_writes_no_results_unless_asked() -> None:
    """Published figures are replaced by a full run only."""
    before = {path: path.read_bytes() for path in RESULTS.rglob("*.json")}
    done = bench("--quick", "growth.parking")
    assert "not written" in done.stdout
    assert {path: path.read_bytes() for path in RESULTS.rglob("*.json")} == before


def test_unknown_benchmark_is_refused_with_the_names() -> None:
    done = bench("growth.waiters")
    assert done.returncode == 2
    assert "growth.handover" in done.stderr
