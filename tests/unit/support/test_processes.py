"""The look at what is left running must see it, or the check at the end of a run is worthless."""

import subprocess
import sys
from pathlib import Path

from tests.support.processes import is_alive, processes_in
from tests.support.waiting import wait_until


def test_processes_in_finds_a_stray_until_it_ends(tmp_path: Path) -> None:
    """Also when the directory is gone, and not once the process is a zombie."""
    home = tmp_path / "home"
    home.mkdir()
    stray = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], cwd=home, stdin=subprocess.PIPE
    )
    try:
        assert processes_in(tmp_path) == [stray.pid]
        assert processes_in(tmp_path / "elsewhere") == []
        home.rmdir()
        assert processes_in(tmp_path) == [stray.pid]
        stray.kill()
        wait_until(lambda: not is_alive(stray.pid), what="the killed process to be a zombie")
        assert processes_in(tmp_path) == []
    finally:
        stray.kill()
        stray.communicate()
