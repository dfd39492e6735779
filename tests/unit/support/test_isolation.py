"""A test answers for what it leaves open; no test in another file does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONFTEST = "from tests.conftest import nothing_left_open, pytest_runtest_protocol"
INNOCENT = """
import gc

def test_innocent():
    gc.collect()
"""
LEAVES_OPEN = """
import socket

def test_leaves_open():
    cycle = [socket.socket()]
    cycle.append(cycle)
"""
FAILS = """
import socket

def test_fails():
    kept = socket.socket()
    raise OSError("as planned")
"""


def run_files(directory: Path, **files: str) -> list[str]:
    """Run pytest on these files, in their order; returns the lines that name what did not pass."""
    for name, text in {"conftest": CONFTEST, **files}.items():
        (directory / f"{name}.py").write_text(text)
    pytest = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, "-c", "/dev/null", f"--rootdir={directory}", str(directory)],
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return [
        " ".join(line.split()[:2])
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR "))
    ]


def test_warning_about_what_is_open_stays_in_its_file(tmp_path: Path) -> None:
    """It came when the garbage was next collected: in a test that had nothing to do with it."""
    found = run_files(tmp_path, test_a=LEAVES_OPEN, test_b=INNOCENT)
    assert found == ["ERROR test_a.py::test_leaves_open"]


def test_what_a_failed_test_held_fails_no_other(tmp_path: Path) -> None:
    """Its frames live until the next failure; one failure must be read as one."""
    found = run_files(tmp_path, test_a=FAILS, test_b=INNOCENT)
    assert found == ["FAILED test_a.py::test_fails"]
