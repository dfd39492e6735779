"""Python in processes of its own: run to the end, or kept running to be stopped and killed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """Run ``code``; what it prints can be read line by line, and its stdin ends when we say."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(code: str, *arguments: str, deadline: float = 90.0) -> str:
    """What ``code`` printed; it must end well and within the deadline."""
    process = start_python(code, *arguments)
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"The child did not end.\n{out}\n{err}") from None
    assert process.returncode == 0, f"The child failed.\n{out}\n{err}"
    return out.strip()
