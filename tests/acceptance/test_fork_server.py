"""A program that the fork server starts is what a new process would be, only sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import fork_server
from tests.servers.fork_server import ForkedProcess, program_of, run_program, start_command
from tests.servers.subprocesses import Child, new_directory
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

DESCRIBE = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "name": __name__, "env": os.environ.get("COLOUR"),
    "leads_group": os.getpgrp() == os.getpid(), "input": sys.stdin.read(),
    "is_forked": "celery.bin.celery" in sys.modules,
    "can_be_interrupted": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}))
"""


def test_program_has_its_own_arguments_environment_directory_and_input(tmp_path: Path) -> None:
    env = {**os.environ, "COLOUR": "blue"}
    done = run_program(["-c", DESCRIBE, "a", "b c"], env, tmp_path, input="typed\n")
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        **{"argv": ["a", "b c"], "cwd": str(tmp_path), "name": "__main__", "env": "blue"},
        **{"leads_group": True, "input": "typed\n", "is_forked": True},
        "can_be_interrupted": True,
    }


@pytest.mark.parametrize("code", ["raise SystemExit(7)", "import sys; sys.exit(7)"])
def test_exit_code_is_that_of_the_program(code: str) -> None:
    assert run_program(["-c", code]).returncode == 7


def test_error_is_printed_and_handlers_at_exit_run() -> None:
    """As at the end of every interpreter."""
    code = "import atexit; atexit.register(print, 'the end'); raise ValueError('wrong')"
    done = run_program(["-c", code])
    assert (done.returncode, done.stdout) == (1, "the end\n")
    assert done.stderr.endswith("ValueError: wrong\n")


def test_killed_program_reports_its_signal_and_the_server_goes_on() -> None:
    child = _sleeping()
    child.signal(signal.SIGKILL)
    wait_until(lambda: child.exit_code == -signal.SIGKILL, what="the exit code")
    assert run_program(["-c", ""]).returncode == 0


def test_programs_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test run that is killed leaves no worker behind."""
    with fork_server.fork_server():
        child = _sleeping()
    wait_until(lambda: not is_alive(child.pid), what="the program to end")


def test_two_programs_do_not_share_their_random_numbers() -> None:
    code = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert run_program(["-c", code]).stdout != run_program(["-c", code]).stdout


@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, "-m", "celery", "-A", "proj", "worker", "-P", "gevent"],
        [sys.executable, "-W", "error", "-c", ""],
        ["/usr/bin/env", "LD_PRELOAD=libfaketime.so", sys.executable, "-c", ""],
        ["/usr/bin/env", "PYTHONHASHSEED=1", sys.executable, "-c", ""],
        ["/usr/bin/valkey-server"],
    ],
    ids=["gevent", "option", "preload", "variable", "not python"],
)
def test_what_depends_on_the_start_of_the_interpreter_is_not_forked(words: list[str]) -> None:
    assert program_of(words, Path("/")) is None


def test_another_release_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "celery_locks").mkdir()
    words = ["/usr/bin/env", f"PYTHONPATH={tmp_path}", sys.executable, "-c", ""]
    assert program_of(words, Path("/")) is None


def test_child_has_no_fork_server() -> None:
    """What the demo starts ends with the demo, and not with the fork server."""
    code = "from tests.servers.fork_server import _has_server; print(_has_server())"
    assert run_program(["-c", code]).stdout == "False\n"
    assert fork_server._has_server()


def test_shell_runs_what_is_not_a_plain_command(tmp_path: Path) -> None:
    """Only a command of Celery's or ours is forked."""
    output = tmp_path / "output"
    shell = start_command("echo one && echo two >&2", output)
    assert isinstance(shell, subprocess.Popen)
    assert (shell.wait(10), output.read_text()) == (0, "one\ntwo\n")
    forked = start_command("celery --version", output)
    assert isinstance(forked, ForkedProcess)
    assert (forked.wait(30), len(output.read_text().splitlines())) == (0, 3)


def _sleeping() -> Child:
    child = Child(
        [sys.executable, "-c", "import time; print('up'); time.sleep(60)"], new_directory()
    )
    wait_until(lambda: child.log() == "up", what="the program to start")
    return child
