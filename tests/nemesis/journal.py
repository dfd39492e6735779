"""What the jobs write about themselves while they run, and the runs that are read from it.

A run writes a line when it starts, one every few hundredths of a second with the deadline of its
lease, and one when it ends or is told of a loss. A run that was killed has no last line. All times
are of ``celery_locks.clock``, which all processes of a machine share and no jump changes.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from celery_locks import LeaseLost
from celery_locks.clock import now
from tests.soak.journal import append_line, read_lines

TICK = 0.04
Outcome = Literal["ended", "lost", "gone"]
Line = Mapping[str, Any]


class Journal:
    """The file of one row."""

    def __init__(self, directory: Path, row: str) -> None:
        self._path = directory / f"{row}.journal"

    @contextmanager
    def run(self, job: str, lock: str, lease: Any) -> Iterator[Pen]:
        """Record one run; ``LeaseLost`` is recorded and goes on to Celery."""
        pen = Pen(self._path, job, lock, lease)
        try:
            pen.write("start")
            yield pen
            pen.write("end")
        except LeaseLost:
            pen.write("lost")
            raise

    def lines(self) -> list[Any]:
        return read_lines(self._path)

    def runs(self) -> list[Run]:
        return read_runs(self.lines())


class Pen:
    """Writes the lines of one run."""

    def __init__(self, path: Path, job: str, lock: str, lease: Any) -> None:
        self._path = path
        self._lease = lease
        self._line = {"run": uuid.uuid4().hex, "job": job, "lock": lock, "pid": os.getpid()}
        self._line["fence"] = lease.fence

    def work(self, seconds: float) -> None:
        """Work until ``seconds`` are over; never ask whether the lease is held."""
        until = now() + seconds
        while now() < until:
            time.sleep(TICK)
            self.write("tick")

    def write(self, what: str) -> None:
        """The deadline is read first: if a renewal comes in between, the line is still true."""
        deadline = self._lease.deadline
        append_line(self._path, {**self._line, "what": what, "deadline": deadline, "at": now()})


@dataclass(frozen=True)
class Run:
    """One run of a job.

    ``last_sign`` is the last moment at which it was seen at work, ``told`` when it learned of the
    loss, ``deadline`` the last one that it knew.
    """

    job: str
    lock: str
    pid: int
    fence: int
    start: float
    last_sign: float
    deadline: float
    outcome: Outcome
    told: float | None = None

    @property
    def inside_until(self) -> float:
        """Until when it believed to hold the lock: no longer than its own deadline allows."""
        if self.outcome == "gone":
            return self.last_sign
        return min(self.last_sign if self.told is None else self.told, self.deadline)


def read_runs(lines: Iterable[Line]) -> list[Run]:
    """Return the runs, in the order of their starts."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["run"], []).append(line)
    return sorted((_run(own) for own in found.values()), key=lambda run: run.start)


def _run(lines: list[Line]) -> Run:
    first, last = lines[0], lines[-1]
    at_work = [line for line in lines if line["what"] != "lost"] or [first]
    return Run(
        job=first["job"],
        lock=first["lock"],
        pid=first["pid"],
        fence=first["fence"],
        start=first["at"],
        last_sign=at_work[-1]["at"],
        deadline=at_work[-1]["deadline"],
        outcome={"end": "ended", "lost": "lost"}.get(last["what"], "gone"),  # type: ignore[arg-type]
        told=last["at"] if last["what"] == "lost" else None,
    )
