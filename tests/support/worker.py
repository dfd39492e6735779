"""A real Celery worker as a subprocess in a process group of its own."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.servers.subprocesses import Child, new_directory
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Worker:
    """``python -m celery -A app worker``; ready when entered, its whole group dead when left.

    ``start`` alone does not wait, so that several can start at once; ``wait_ready`` does.
    """

    running: ClassVar[list["Worker"]] = []

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._env = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(env or {})}
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "worker", "-P", pool),
            *("-c", str(concurrency), "-l", "INFO", "-n", f"{pool}-{os.urandom(4).hex()}@test"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", *arguments),
        ]
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        words = [f"{name}={value}" for name, value in self._env.items()]
        self._child = Child(["/usr/bin/env", *words, *self._command], new_directory())
        self.running.append(self)

    def wait_ready(self, deadline: float = 60.0) -> None:
        wait_until(self._is_ready, deadline, every=0.05, what="the worker to be ready")

    def _is_ready(self) -> bool:
        assert self.is_running, f"The worker ended at once:\n{self.log()}"
        return " ready." in self.log()

    @property
    def child(self) -> Child:
        assert self._child, "start() first"
        return self._child

    @property
    def pid(self) -> int:
        """The main process, which leads the group."""
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child.is_running

    @property
    def children(self) -> list[int]:
        """The living processes of the pool."""
        found: list[str] = []
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended
                found += (thread / "children").read_text().split()
        return [int(pid) for pid in found if is_alive(int(pid))]

    def log(self) -> str:
        return self.child.log(lines=100_000)

    def signal(self, number: int) -> None:
        """To the main process only, as an init system does it."""
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait_end(self, deadline: float = 20.0) -> None:
        wait_until(lambda: not self.is_running, deadline, what="the worker to end")

    def stop(self, deadline: float = 20.0) -> None:
        """A warm shutdown."""
        self.signal(signal.SIGTERM)
        self.wait_end(deadline)

    def kill(self) -> None:
        """The whole group, also what outlived its leader."""
        if self._child is None:
            return
        self.signal_group(signal.SIGKILL)
        self._child.kill()
        if self in self.running:
            self.running.remove(self)


def threads_of(pid: int) -> int:
    """How many threads the system sees in a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
