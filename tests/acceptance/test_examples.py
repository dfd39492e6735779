"""The examples run alone, show what they promise, and exit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.subprocesses import DIRECTORY_VARIABLE
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SENTENCES = {
    "quickstart": ["42 again: skipped, invoice:42 is held by pid", "43: invoice 43 is billed"],
    "beat": ["more were due in the meantime and were skipped", "No two runs overlapped"],
    "single_beat": ["Beat 2 goes on", "No run was sent twice"],
    "ordering": ["two wait for it", "Never two of ann's at once"],
    "semaphore": ["9 addresses found", "At most 3 calls at once"],
    "rate_limits": ["5 orders, the last one", "get 429", "Retry-After: 1 s"],
    "agent_runs": ["r1 again: skipped", "r1: stopped", "2 runs cleaned up after themselves, 0 are"],
    "task_locks": [
        "task_lock_context raises: held by pid",
        "release_task_lock: True; left: []",
        "GET /api/v1/tasks/locks: task_lock:42, nightly report[42] on scheduler-1",
        "GET /api/v1/tasks/42/lock: locked True",
        "POST /api/v1/tasks/42/release-lock: freed task_lock:42",
        "by write key 1 over the web from 127.0.0.1, claimed name 'ann', because stuck",
    ],
    "request_binding": ["1 job, 1 created it", "leaves no binding", "(False, 'job-0')"],
    "message_absorption": ["gets kill -9 in the middle", "60 messages remembered, 0 lost, 0 twice"],
    "payments_and_flash_sale": ["booked 1 time", "no mark is left", "100 buyers have 100 items, 0"],
    "fenced": ["20 was written", "10 was REFUSED", "There are 20 in the table"],
}


def test_every_example_is_run() -> None:
    """One that nobody runs does not work for long."""
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in files if name[0] != "_"} == {*SENTENCES, "demo"}


def test_every_example_is_listed() -> None:
    """Nobody finds one that the index leaves out."""
    index = (ROOT / "examples" / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in index for name in (*SENTENCES, "demo"))


@pytest.mark.parametrize("name", SENTENCES)
def test_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env={**os.environ, DIRECTORY_VARIABLE: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,  # alone it takes a few seconds
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for sentence in SENTENCES[name]:
        assert sentence in done.stdout
    wait_until(lambda: not processes_in(tmp_path), what="its processes to be gone")
