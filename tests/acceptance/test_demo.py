"""``make demo`` as a visitor sees it: it shows what it says, exits, and leaves nothing."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.subprocesses import DIRECTORY_VARIABLE
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.demo"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The demo's server and worker work below this directory, so that leftovers are seen."""
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, DIRECTORY_VARIABLE: str(home), "TERM": "xterm", "COLUMNS": "120"}


def expect_nothing_left(home: Path) -> None:
    wait_until(lambda: not processes_in(home), what="the demo's processes to be gone")
    assert list(home.iterdir()) == []


def test_demo_shows_what_it_says(home: Path) -> None:
    """In a pipe, without colour: every step explained, the lock back long before its ttl."""
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    output = done.stdout
    assert "\x1b" not in output
    assert "1 run billed it. 4 were skipped" in output
    assert all(f"\n{step}. " in output for step in (1, 2, 3, 4))
    assert re.search(r"account:ann +book \w+ +\d+ +\d+ +[\d.]+ s +2\n", output), output
    back = re.search(r"The lock was free after (\d+) ms", output)
    assert back, output
    assert int(back[1]) < 1000
    expect_nothing_left(home)


def test_demo_draws_its_table_in_a_terminal(home: Path) -> None:
    """A table that is redrawn in place, and the same sentences."""
    pytest.importorskip("rich")
    outer, inner = pty.openpty()
    demo = subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment(home), stdout=inner, stderr=inner, stdin=inner
    )
    os.close(inner)
    output = b""
    try:
        while chunk := _read(outer):
            output += chunk
        assert demo.wait(30) == 0, output.decode()
    finally:
        os.close(outer)
        demo.kill()
        demo.wait()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert "who holds which lock" in text
    assert "invoice:42" in text
    assert "The lock was free after" in text
    assert output.count(b"\x1b[") > 50
    expect_nothing_left(home)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


@pytest.mark.parametrize("moment", ["Starting a Celery", "1. Five tasks", "kill -9"])
def test_demo_leaves_nothing_after_ctrl_c(home: Path, moment: str) -> None:
    """Ctrl-C at any step: one word, no traceback, no process."""
    log = home.parent / f"{home.name}.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            COMMAND, cwd=ROOT, env=environment(home), stdout=out, stderr=out, process_group=0
        )
    try:
        wait_until(lambda: moment in log.read_text(), 30, what=f"{moment!r} on the screen")
        os.killpg(demo.pid, signal.SIGINT)
        # To a shell both are 130: where Ctrl-C strikes inside an exec (as dataclasses do), CPython
        # dies of the signal itself at its end.
        assert demo.wait(30) in (130, -signal.SIGINT), log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert log.read_text().endswith("Stopped.\n")
    assert "Traceback" not in log.read_text()
    expect_nothing_left(home)


def test_ctrl_c_during_a_finalizer_stops_the_demo_too(home: Path) -> None:
    code = """
import time
from examples import _run

class Interrupted:
    def __del__(self):
        raise KeyboardInterrupt

def show():
    Interrupted()
    time.sleep(30)

_run.main(show)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "\nStopped.\n")
    expect_nothing_left(home)
