"""kill -9 at the lines of parking and of waking: a second process finishes, and nothing is lost.

A sample of the lines; ``make test-strikes`` takes all of them, which needs half an hour, and writes
its figures to ``benchmarks/results/strikes.md``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
ALL = bool(os.environ.get("CELERY_LOCKS_ALL_STRIKES"))
SAMPLE = 12
RESULTS = ROOT / "benchmarks" / "results" / "strikes"
LONGEST = 7200.0 if ALL else 240.0


@pytest.mark.timeout(LONGEST + 60)
@pytest.mark.parametrize(
    "scenario", ["park_message", "wake_by_release", "wake_by_poll", "publish_call"]
)
def test_process_killed_at_any_line_loses_no_message(scenario: str) -> None:
    with EmbeddedServer() as server:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "tests.support.parking_strikes"),
                *(server.url, scenario, "0" if ALL else str(SAMPLE)),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    if ALL:
        record(scenario, answer, revision())
    assert answer["failures"] == [], ended.stderr
    assert answer["strikes"] >= (answer["lines"] * 0.9 if ALL else SAMPLE * 0.7)


def revision() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def record(scenario: str, answer: dict[str, Any], revision: str) -> None:
    """Replace the row of this scenario in the results."""
    path = RESULTS.with_suffix(".json")
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows[scenario] = {**answer, "revision": revision}
    path.write_text(json.dumps(rows, indent=2) + "\n")
    lines = ["# `make test-strikes`", ""]
    lines += ["| a process dies as it runs | lines | killed at | failures | revision |"]
    lines += ["|---|---:|---:|---:|---|"]
    lines += [
        f"| `{name}` | {row['lines']} | {row['strikes']} | {len(row['failures'])} "
        f"| {row['revision']} |"
        for name, row in rows.items()
    ]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")
