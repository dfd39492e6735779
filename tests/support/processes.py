"""Which processes run, and in which directory."""

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """True while it runs. A zombie does not: it is dead, only nobody has asked for its status."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    except ProcessLookupError:  # it ended between the opening and the reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def processes_in(directory: Path) -> list[int]:
    """The living processes that work in `directory` or below, even if it was deleted since.

    Embedded servers work in a directory of their own, so this finds them whoever started them.
    """
    proc = Path("/proc")
    pids = (
        [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
        if proc.exists()
        else []
    )
    return [pid for pid in pids if _works_in(pid, directory) and is_alive(pid)]


def _works_in(pid: int, directory: Path) -> bool:
    try:
        where = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
    except OSError:
        return False  # gone meanwhile, or another user's
    return Path(where).is_relative_to(directory)
