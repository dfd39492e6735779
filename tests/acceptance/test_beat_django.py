"""Two real beats on the database of django-celery-beat."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fork_server import run_program
from tests.support.beats import PATIENCE, ROOT, Fleet, server_with_worker
from tests.support.waiting import wait_until

pytest.importorskip("django_celery_beat")


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The project, in the environment of the processes of this test."""
    found = {
        "DJANGO_SETTINGS_MODULE": "tests.support.beat_django",
        "BEAT_DATABASE": str(tmp_path / "db.sqlite3"),
        "PYTHONPATH": str(ROOT),
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def in_project(*arguments: str) -> Any:
    done = run_program(["-m", "tests.support.beat_django", *arguments], cwd=ROOT)
    done.check_returncode()
    return json.loads(done.stdout or "null")


@pytest.fixture
def fleet(variables: dict[str, str]) -> Iterator[Fleet]:
    in_project("migrate")
    with server_with_worker() as server:
        fleet = Fleet(server)
        fleet.conf["locks_beat_scheduler"] = "django"  # the alias of django-celery-beat
        yield fleet
        fleet.kill()


def test_database_scheduler_is_taken_over(fleet: Fleet) -> None:
    """The killed beat had not written its runs to the database, not even that of the one-off."""
    active, other = fleet.two_beats()
    in_project("once", "2")
    wait_until(lambda: fleet.numbers("once") == [1], PATIENCE, what="the run of the one-off")
    fleet.kill_between_runs(active)
    assert in_project("counts")["fast"] < fleet.last_number("fast")
    fleet.wait_sent_by(other, 3)
    fleet.wait_quiet()
    os.kill(other.pid, signal.SIGTERM)
    wait_until(lambda: not other.is_running, PATIENCE, what="the beat to end")
    fleet.check_each_run_is_sent_once(quiet=False)
    assert fleet.numbers("once") == [1]
    written = in_project("counts")
    assert written["fast"] == fleet.last_number("fast")
    assert written["slow"] == fleet.last_number("slow")
