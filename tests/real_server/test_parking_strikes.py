"""kill -9 at the lines of parking and of waking: a second process finishes, and nothing is lost.

A sample of the lines; ``make test-strikes`` takes all of them, which needs half an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
ALL = bool(os.environ.get("CELERY_LOCKS_ALL_STRIKES"))
SAMPLE = 12
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
    print(answer)
    assert answer["failures"] == [], ended.stderr
    assert answer["strikes"] >= (answer["lines"] * 0.9 if ALL else SAMPLE * 0.7)
