"""The servers and workers of some rows: two prefork workers, a broker, a lock server.

Rows of the same kind of rig share it, each with locks and jobs of its own. A row leaves it as it
was: what it stopped goes on, and what it killed is replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.nemesis.clocks import FakeClock, clocked_server
from tests.nemesis.tasks import VARIABLE
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import new_directory
from tests.servers.topologies import EmbeddedSentinel
from tests.support.proxy import Proxy
from tests.support.worker import Worker

WORKERS = 2
CONCURRENCY = 4


@dataclass
class Rig:
    """What a fault can reach. Workers reach the lock server by the proxy, except with Sentinel."""

    broker: EmbeddedServer
    lock_server: EmbeddedServer
    proxy: Proxy
    locks_url: str
    clocks: list[FakeClock] = field(default_factory=list)  # the server's, then the workers'
    sentinel: EmbeddedSentinel | None = None
    directory: Path = field(default_factory=new_directory)
    workers: list[Worker] = field(default_factory=list)

    @property
    def conf(self) -> dict[str, Any]:
        directory = str(self.directory)
        urls = {"broker_url": self.broker.url, "locks_url": self.locks_url}
        return {**urls, "directory": directory}

    def start_worker(self, index: int) -> Worker:
        clock = self.clocks[1 + index].environment if self.clocks else {}
        env = {VARIABLE: json.dumps(self.conf), **clock}
        worker = Worker("tests.nemesis.tasks", concurrency=CONCURRENCY, env=env)
        worker.start()
        return worker

    def worker_of(self, child: int) -> Worker:
        return next(worker for worker in self.workers if child in worker.children)

    def replace(self, worker: Worker) -> None:
        """Start another one in the place of a dead one, as an init system does."""
        worker.kill()
        index = self.workers.index(worker)
        self.workers[index] = self.start_worker(index)
        self.workers[index].wait_ready()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def open_rig(kind: str) -> Iterator[Rig]:
    """Start a rig; its workers are ready."""
    with ExitStack() as stack:
        rig = _KINDS[kind](stack)
        stack.callback(rig.close)
        for index in range(WORKERS):
            rig.workers.append(rig.start_worker(index))
        for worker in rig.workers:
            worker.wait_ready()
        yield rig


def _single(stack: ExitStack, lock_server: EmbeddedServer, clocks: list[FakeClock]) -> Rig:
    broker = stack.enter_context(EmbeddedServer(appendonly="always"))
    stack.enter_context(lock_server)
    proxy = stack.enter_context(Proxy(lock_server.host, lock_server.port))
    return Rig(broker, lock_server, proxy, proxy.url, clocks)


def _plain(stack: ExitStack) -> Rig:
    # A fault changes where the server saves; without this line it may not.
    return _single(stack, EmbeddedServer({"enable-protected-configs": "yes"}), [])


def _durable(stack: ExitStack) -> Rig:
    return _single(stack, EmbeddedServer(appendonly="always"), [])


def _clocked(stack: ExitStack) -> Rig:
    clocks = [FakeClock(new_directory()) for _ in range(1 + WORKERS)]
    return _single(stack, clocked_server(clocks[0]), clocks)


def _replicated(stack: ExitStack) -> Rig:
    broker = stack.enter_context(EmbeddedServer(appendonly="always"))
    trio = stack.enter_context(EmbeddedSentinel())
    primary = trio.primary
    proxy = stack.enter_context(Proxy(primary.host, primary.port))
    return Rig(broker, primary, proxy, trio.url, sentinel=trio)


_KINDS: dict[str, Callable[[ExitStack], Rig]] = {
    "plain": _plain,
    "durable": _durable,
    "clocked": _clocked,
    "replicated": _replicated,
}
