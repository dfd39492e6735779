"""``tests/typing/api.py`` through both type checkers, and what makes it possible at run time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_locks import LockedTask

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def celery_types(request: pytest.FixtureRequest) -> None:
    """Without the stubs Celery is untyped, and there is nothing to check."""
    if "checker" in request.node.name and not _is_installed("celery-stubs"):
        sentence = "celery-types is not installed: pip install -e '.[dev]'"
        pytest.fail(sentence) if os.environ.get("CI") else pytest.skip(sentence)


def _is_installed(package: str) -> bool:
    return any((Path(place) / package).is_dir() for place in sys.path)


def _check(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_checker_mypy_accepts_the_api() -> None:
    """A task that lost its signature would accept any argument, and nobody would notice."""
    _check("mypy", "--config-file", "tests/typing/mypy.ini")


def test_checker_pyright_accepts_the_api() -> None:
    _check("pyright", "-p", "tests/typing", "--pythonpath", sys.executable)


def test_locked_task_with_parameters_is_a_base() -> None:
    """Celery before 5.7 has no subscript, and none takes a generic alias as a base."""
    app = Celery(set_as_current=False)

    @app.task(base=LockedTask[[int], str], shared=False)
    def charge(number: int) -> str:
        return str(number)

    assert isinstance(charge, LockedTask)
    assert LockedTask[[int], str] is LockedTask
