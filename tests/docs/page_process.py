"""Runs a page in a process of its own, with an embedded server; nothing of it survives its end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
# For a whole page; a single command has less (PATIENCE in page_runner.py).
DEADLINE = 180.0


def run_page(page: Path) -> str:
    """Run all snippets of the page; return the report of the one that failed, or an empty text."""
    directory = new_directory()
    work = directory / "page"
    work.mkdir()
    with EmbeddedServer() as server:
        run = [sys.executable, "-m", "tests.docs.page_runner", str(page), server.url, str(work)]
        child = Child(["/usr/bin/env", "-C", str(ROOT), *run], directory)
        try:
            wait_until(
                lambda: not child.is_running, DEADLINE, every=0.02, what=f"the end of {page}"
            )
        except AssertionError as error:
            child.kill()
            return f"{error}\n\n{child.log(200)}"
        finally:
            _kill_all_in(directory)
            child.stop()
    ended = f"{page}: its process ended with exit code {child.exit_code}"
    return (child.log(200) or ended) if child.exit_code else ""


def _kill_all_in(directory: Path) -> None:
    """Kill what the page left behind, such as the pool of a worker that was killed."""
    for pid in processes_in(directory):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
