"""Writes down every request of a process to the lock server, and its reply, one JSON line each.

``install(directory)`` wraps the exchange with the server; the package itself knows nothing of it.
It must run before the first ``Locks`` is made. A line is written with one ``write`` before the
request is sent, so a process that is killed at any point has not sent what is not in its file. Each
try of a call is a request of its own. Forked children write files of their own. The name of a file
and the ids in it are random, because the system uses a process id again in a run of an hour.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from celery_locks.store.connection_pool import ConnectionPools
from celery_locks.store.notifications import Notifications
from tests.histories.protocol import Fields, read_reply, read_request, script_names

VARIABLE = "CELERY_LOCKS_HISTORY"
"""Names the directory for the files of runs that are started with an environment."""


class Recorder:
    """The file of this process; a child that was forked opens its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._name = ""
        self._file = -1
        os.register_at_fork(after_in_child=self._start_file)
        self._start_file()
        self._lock_of: dict[str, str] = {}

    def _start_file(self) -> None:
        """Write from now on into a file of this process, which its first line creates."""
        self._name, self._file = f"{os.getpid()}-{os.urandom(6).hex()}", -1

    def write_request(self, fields: Fields) -> str:
        """Write one request and return its id."""
        identifier = f"{self._name}-{next(self._numbers)}"
        if fields["operation"] == "acquire":
            self._lock_of[fields["token"]] = fields["lock"]
        self._write({"id": identifier, "at": time.monotonic(), "process": os.getpid(), **fields})
        return identifier

    def write_reply(self, identifier: str, reply: Fields | None, error: str = "") -> None:
        self._write({"id": identifier, "at": time.monotonic(), "reply": reply, "error": error})

    def hand_over_of(self, token: str) -> list[Fields]:
        """Return the request that stands for a wait: its reply is a message with the fence."""
        lock = self._lock_of.get(token)
        return [{"operation": "hand_over", "lock": lock, "token": token}] if lock else []

    def _write(self, line: dict[str, Any]) -> None:
        if self._file < 0:
            path = self._directory / f"{self._name}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._file, json.dumps(line).encode() + b"\n")


def install(directory: Path) -> None:
    """Record what this process, and what it forks, asks of any lock server."""
    recorder = Recorder(directory)
    script_names()  # before anything is forked: it reads all scripts
    exchange, wait = ConnectionPools.exchange, Notifications.wait

    async def recorded_exchange(
        pools: ConnectionPools, address: Any, data: bytes, deadline: float
    ) -> Any:
        requests = read_request(data)
        ids = [recorder.write_request(request) for request in requests]
        try:
            reply = await exchange(pools, address, data, deadline)
        except BaseException as error:
            for identifier in ids:
                recorder.write_reply(identifier, None, repr(error))
            raise
        for position, identifier in enumerate(ids):
            recorder.write_reply(identifier, read_reply(requests[position], position, reply))
        return reply

    async def recorded_wait(notifications: Notifications, token: str, seconds: float) -> int:
        ids = [recorder.write_request(request) for request in recorder.hand_over_of(token)]
        fence = await wait(notifications, token, seconds)
        for identifier in ids:
            recorder.write_reply(identifier, {"fence": fence} if fence else {"not_executed": True})
        return fence

    ConnectionPools.exchange = recorded_exchange  # type: ignore[method-assign]
    Notifications.wait = recorded_wait  # type: ignore[method-assign]


def install_if_wanted() -> None:
    """Record if the environment names a directory; the directory is made if it is missing."""
    if directory := os.environ.get(VARIABLE):
        Path(directory).mkdir(parents=True, exist_ok=True)
        install(Path(directory))
