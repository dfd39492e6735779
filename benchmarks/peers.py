"""The candidates' environments, workers and callers.

Each peer has its own virtual environment, ``.venv-bench-<name>``, created on first use: our Celery
and redis-py with the newest release of the peer. The report names a peer that cannot be installed,
or does not work with them, and the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory

ROOT = Path(__file__).parent.parent
PLAIN, OURS, COOKBOOK = "plain Celery", "celery-locks", "cookbook recipe"
PEERS = ("celery-once", "celery-singleton", "celery-heimdall")
CANDIDATES = (PLAIN, OURS, COOKBOOK, *PEERS)
# Ours with rates: one that never delays, and one that does.
RATED, DELAYED = "celery-locks with a rate", "celery-locks with a low rate"
_DATABASES = (*CANDIDATES, RATED, DELAYED)


class Unusable(Exception):
    """The candidate cannot take part; the message says why."""


def interpreter(name: str) -> str:
    """Return the Python that has the candidate; install it if it is missing."""
    if name not in PEERS:
        return sys.executable
    home = ROOT / f".venv-bench-{name}"
    python, stamp = home / "bin" / "python", home / ".installed"
    if not stamp.exists():
        _install(name, home, python)
        stamp.touch()
    return str(python)


def _install(name: str, home: Path, python: Path) -> None:
    # The same Celery and redis-py for all, or the benchmark would compare those.
    wanted = [name, "packaging", *(f"{each}=={version(each)}" for each in ("celery", "redis"))]
    uv = shutil.which("uv")
    if uv:
        steps = [
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *wanted],
        ]
    else:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        steps = [[sys.executable, "-m", "venv", "--clear", str(home)], [*pip, *wanted]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Unusable(f"could not be installed: {' '.join(last)}")


def release(name: str) -> str:
    """Return the version of a peer in its environment."""
    program = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run(
        [interpreter(name), "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "of unknown version"


@dataclass
class Contender:
    """A candidate with its worker and its caller."""

    name: str
    worker: Child
    _server: EmbeddedServer
    _caller: subprocess.Popen[str]

    def processor_time(self) -> float:
        """Return the processor time of caller, server and worker together."""
        pids = self._caller.pid, self._server.pid, self.worker.pid
        return sum(map(processor_time, pids))

    def pin(self) -> None:
        """Give the worker one half of the cores, caller and server the other.

        The scheduler places five processes on two cores in another way each time, and rates differ
        by a quarter with it.
        """
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half:
            pin(self.worker.pid, cores[half:])
            pin(self._caller.pid, cores[:half])
            pin(self._server.pid, cores[:half])

    def ask(self, *call: Any) -> Any:
        assert self._caller.stdin
        assert self._caller.stdout
        self._caller.stdin.write(json.dumps(call) + "\n")
        self._caller.stdin.flush()
        answer = self._caller.stdout.readline()
        if not answer:
            assert self._caller.stderr
            lines = self._caller.stderr.read().strip().splitlines()
            raise Unusable(f"does not work here: {lines[-1] if lines else 'no answer'}")
        return json.loads(answer)

    def stop(self) -> None:
        self._caller.kill()
        self._caller.communicate()
        self.worker.stop()


def start(name: str, server: EmbeddedServer, pool: Sequence[str], locks_url: str = "") -> Contender:
    """Start a worker on its own database; do not wait for it, so that several start at once."""
    python = interpreter(name)
    database = 1 + _DATABASES.index(name)
    given = {
        "BENCH_CANDIDATE": name,
        "BENCH_URL": server.url.removesuffix("0") + str(database),
        "BENCH_LOCKS_URL": locks_url,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    words = ["env", *(f"{variable}={value}" for variable, value in given.items()), python]
    flags = ["-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    env = shutil.which("env") or "/usr/bin/env"
    worker = Child(
        [env, *words[1:], "-m", "celery", "-A", "benchmarks.candidates", "worker", *pool, *flags],
        new_directory(),
    )
    caller = subprocess.Popen(
        [python, "-m", "benchmarks.candidates"],
        cwd=ROOT,
        env={**os.environ, **given},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Contender(name, worker, server, caller)


@contextmanager
def contenders(
    names: Sequence[str], server: EmbeddedServer, pool: Sequence[str]
) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Start candidates: those that work, after a few tasks, and why the others do not."""
    ready: list[Contender] = []
    absent: dict[str, str] = {}
    try:
        for name in names:
            try:
                ready.append(start(name, server, pool))
            except Unusable as error:
                absent[name] = str(error)
        for contender in list(ready):
            try:
                contender.ask("done", 2)
            except Unusable as error:
                absent[contender.name] = str(error)
                ready.remove(contender)
                contender.stop()
        yield ready, absent
    finally:
        for contender in ready:
            contender.stop()


def load() -> str:
    """Return the load of the machine, for the results."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def processor_time(pid: int) -> float:
    """Return the processor seconds of a process and its live children."""
    nanoseconds = sum(
        int((thread / "schedstat").read_text().split()[0]) for thread in _threads(pid)
    )
    return nanoseconds / 1e9 + sum(map(processor_time, _children(pid)))


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process and of its live children run on these cores only."""
    for thread in _threads(pid):
        os.sched_setaffinity(int(thread.name), cores)
    for child in _children(pid):
        pin(child, cores)


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _children(pid: int) -> set[int]:
    found = set[int]()
    for thread in _threads(pid):
        found.update(map(int, (thread / "children").read_text().split()))
    return found
