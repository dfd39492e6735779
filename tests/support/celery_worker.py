"""A worker in a subprocess, the app that talks to it, and the journal of what it ran."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from celery_locks import Locks
from celery_locks.integration.app_locks import locks_of
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.celery_app import CONF_VARIABLE, EVENTS, JOURNAL, make_app
from tests.support.client_app import close_client, share_backend
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds for anything a healthy worker does in less than one: the machine may be busy."""


class Worker:
    """One ``celery worker`` process, or another program of Celery's; its log is in ``log``."""

    def __init__(
        self, conf: dict[str, Any], arguments: tuple[str, ...], program: str = "worker"
    ) -> None:
        settings = [f"PYTHONPATH={ROOT}", f"{CONF_VARIABLE}={json.dumps(conf)}"]
        command = ["/usr/bin/env", *settings, "COVERAGE_PROCESS_START=", sys.executable, "-m"]
        command += ["celery", "-A", "tests.support.celery_app", program, "-l", "INFO"]
        self._child = Child([*command, *arguments], new_directory())
        self._path = self._child.log_path

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_ready(self) -> None:
        wait_until(self._is_ready, PATIENCE, every=0.02, what="the worker to be ready")

    def _is_ready(self) -> bool:
        assert self._child.is_running, f"the worker ended at once:\n{self.log}"
        return " ready." in self.log

    def kill(self) -> None:
        """SIGKILL for the main process and its children: the machine is gone."""
        self._child.kill()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        if self._child.is_running:
            self._child.stop(patience=10.0)


class Rig:
    """A server with an app on it, as the test sees them. ``conf`` are Celery's settings."""

    def __init__(self, server: EmbeddedServer, **conf: Any) -> None:
        self.server = server
        url = server.url
        self.conf: dict[str, Any] = {
            "broker_url": url,
            "result_backend": url,
            "journal_url": url,
            "locks_ttl": 3,
            **conf,
        }
        self.app = share_backend(make_app(self.conf))
        self.redis: redis.Redis = server.client()
        self.locks = Locks.from_app(self.app)

    def close(self) -> None:
        self.locks.close()
        locks_of(self.app).close()
        close_client(self.app)
        self.redis.close()

    def task(self, name: str) -> Any:
        self.app.finalize()
        return self.app.tasks[name]

    @contextmanager
    def worker(
        self, *arguments: str, pool: str = "prefork", concurrency: int = 2, **conf: Any
    ) -> Iterator[Worker]:
        """A running worker; ``conf`` goes on top of the rig's, for this worker only."""
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        asked = ("-P", pool, "-c", str(concurrency), *quiet, *arguments)
        worker = Worker({**self.conf, **conf}, asked)
        try:
            worker.wait_ready()
            yield worker
        except BaseException:
            print(f"--- worker {worker.pid}:\n{worker.log[-6000:]}")
            raise
        finally:
            worker.stop()

    def open(self, gate: str) -> None:
        self.redis.set(f"gate:{gate}", 1)

    def journal(self, task_id: str | None = None) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in self.redis.lrange(JOURNAL, 0, -1)]
        return [entry for entry in entries if task_id in (None, entry["id"])]

    def starts(self, task_id: str | None = None) -> list[dict[str, Any]]:
        return [entry for entry in self.journal(task_id) if entry["what"] == "start"]

    def wait_started(self, result: Any, times: int = 1) -> dict[str, Any]:
        """The journal's entry of the given start of this task."""
        return wait_until(
            lambda: self.starts(result.id)[times - 1 : times],
            PATIENCE,
            what=f"start {times} of task {result.id}",
        )[0]

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """What the worker's own subscriber of lock events has seen."""
        entries = [json.loads(line) for line in self.redis.lrange(EVENTS, 0, -1)]
        return [entry for entry in entries if (entry["kind"], entry["name"]) == (kind, name)]

    def all_events(self, kind: str) -> list[dict[str, Any]]:
        """The events of all locks."""
        entries = [json.loads(line) for line in self.redis.lrange(EVENTS, 0, -1)]
        return [entry for entry in entries if entry["kind"] == kind]

    def wait_event(self, kind: str, name: str, times: int = 1) -> None:
        wait_until(
            lambda: len(self.events(kind, name)) >= times,
            PATIENCE,
            what=f"event {kind} of lock {name}",
        )

    def wait_free(self, name: str) -> None:
        wait_until(lambda: not self.locks.holders(name), PATIENCE, what=f"lock {name} to be free")

    def never_two_at_once(self, task_id: str | None = None) -> None:
        """Each start comes after the end of the one before; a killed run has no end and no say."""
        inside: set[str] = set()
        for entry in self.journal(task_id):
            lock = entry["lock"] or ""
            if entry["what"] == "start":
                assert lock not in inside, f"two at once under {lock}: {self.journal(task_id)}"
                inside.add(lock)
            else:
                inside.discard(lock)


@contextmanager
def rig_on(server: EmbeddedServer, **conf: Any) -> Iterator[Rig]:
    rig = Rig(server, **conf)
    try:
        yield rig
    finally:
        rig.close()


@contextmanager
def fresh_rig(**conf: Any) -> Iterator[Rig]:
    """A rig on a server of its own."""
    with EmbeddedServer() as server, rig_on(server, **conf) as rig:
        yield rig
