"""What tasks under test write down about themselves, and whether two of them ran at once.

The moments are wall time of one machine, written by whoever does the work: a run lasts from its
first line to its last sign of life, however it ended.
"""

import itertools
import json
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any

import redis


class Pen:
    """Writes one run's lines; made by the task, in its process."""

    def __init__(self, url: str, key: str, task: str, fence: int) -> None:
        self._client = _client(url)
        self._key = key
        self._line = {"run": uuid.uuid4().hex, "task": task, "pid": os.getpid(), "fence": fence}

    def write(self, what: str, **more: Any) -> None:
        line = {**self._line, "what": what, "at": time.time(), **more}
        self._client.rpush(f"journal:{self._key}", json.dumps(line))


_clients: dict[int, "redis.Redis"] = {}


def _client(url: str) -> "redis.Redis":
    pid = os.getpid()
    if pid not in _clients:
        _clients[pid] = redis.Redis.from_url(url)
    return _clients[pid]


@dataclass(frozen=True)
class Run:
    """One execution as it described itself."""

    task: str
    pid: int
    fence: int
    began: float
    last_sign: float
    lines: tuple[str, ...]


class Journal:
    """Reads what was written for each key."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def close(self) -> None:
        self._client.close()

    def runs(self, key: str) -> list[Run]:
        """In the order in which they began."""
        found: dict[str, list[dict[str, Any]]] = {}
        for text in self._client.lrange(f"journal:{key}", 0, -1):  # type: ignore[union-attr]
            line = json.loads(text)
            found.setdefault(line["run"], []).append(line)
        runs = [_run(lines) for lines in found.values()]
        return sorted(runs, key=lambda run: run.began)

    def wrote(self, key: str, what: str) -> bool:
        return any(what in run.lines for run in self.runs(key))

    def gate(self, key: str) -> None:
        """Let the task for ``key`` that waits at its gate go on."""
        self._client.rpush(f"gate:{key}", "go")

    def check_exclusive(self, key: str) -> None:
        """No run began before the one in front of it gave its last sign, and fences increase."""
        runs = self.runs(key)
        for one, following in itertools.pairwise(runs):
            assert following.began >= one.last_sign, f"two ran at once: {one} and {following}"
            assert following.fence > one.fence, f"the fence did not increase: {one}, {following}"


def _run(lines: list[dict[str, Any]]) -> Run:
    first = lines[0]
    return Run(
        first["task"],
        first["pid"],
        first["fence"],
        began=min(line["at"] for line in lines),
        last_sign=max(line["at"] for line in lines),
        lines=tuple(line["what"] for line in lines),
    )
