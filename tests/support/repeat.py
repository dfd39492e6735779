"""Run the whole suite several times in a row: ``make test-repeat N=10``.

Every second run shares the machine with processes that only compute (``LOAD=2`` of them), so that a
test which depends on a fast machine shows itself. Prints one line for each run: exit code, seconds,
failed tests. The output of each run stays in ``.repeat``. Ends with 1 if any run failed.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGS = Path(".repeat")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Processes that compute until the block ends, or until we are gone."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10_000))"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_suite(number: int, processes: int, command: list[str]) -> bool:
    log, began = LOGS / f"{number}.log", time.monotonic()
    with load(processes), log.open("w") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
    seconds = time.monotonic() - began
    failed = sorted(set(FAILED.findall(log.read_text(errors="replace"))))
    beside = f", {processes} busy processes" if processes else ""
    print(f"run {number}: exit {code}, {seconds:.0f} s{beside}", *failed, flush=True)
    return code == 0


def main(runs: int, processes: int, command: list[str]) -> int:
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    numbers = range(1, runs + 1)
    passed = sum(run_suite(n, 0 if n % 2 else processes, command) for n in numbers)
    print(f"{passed} of {runs} runs passed; their output is in {LOGS}/")
    return 0 if passed == runs else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
