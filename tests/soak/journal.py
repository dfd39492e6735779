"""What the jobs write about themselves, and the verdict that follows from it.

Every line is one ``write`` to a file opened for appending, so lines of different processes never
mix and their order is the order in which they were written. Mutual exclusion is checked by the
kernel and not by us: a job takes an ``flock`` of its account, which the kernel releases when the
process dies. A job that finds it taken overlaps with another one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class Journal:
    """The file ``journal`` and one file per account in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "journal"

    def write(self, what: str, job: str, account: int, fence: int = 0) -> None:
        line = {"what": what, "job": job, "account": account, "fence": fence}
        append_line(self._path, line | {"pid": os.getpid(), "at": time.time()})

    @contextmanager
    def run(self, job: str, account: int, fence: int) -> Iterator[None]:
        """Record one run; an overlap with another run of the account is recorded too."""
        with (self._directory / f"account-{account}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.write("overlap", job, account, fence)
            self.write("start", job, account, fence)
            yield
            self.write("end", job, account, fence)

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self._path)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # A line that is being written has no end yet.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@dataclass(frozen=True)
class Verdict:
    """What a journal proves about the jobs that were published."""

    published: int
    completed: int
    started: int
    overlaps: int
    completed_twice: int
    lost: tuple[str, ...]
    fence_errors: int

    @property
    def excludes(self) -> bool:
        return not self.overlaps and not self.fence_errors

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lost": len(self.lost)}


def judge(published: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> Verdict:
    """Count overlaps, jobs completed twice, lost jobs, and fences that did not increase.

    A job that was killed and ran again started twice but completed once, which is right.
    """
    jobs, lines = list(published), list(lines)
    ends = Counter(line["job"] for line in lines if line["what"] == "end")
    starts = [line for line in lines if line["what"] == "start"]
    return Verdict(
        published=len(jobs),
        completed=len(ends),
        started=len(starts),
        overlaps=sum(line["what"] == "overlap" for line in lines),
        completed_twice=sum(count > 1 for count in ends.values()),
        lost=tuple(job for job in jobs if job not in ends),
        fence_errors=_count_fence_errors(starts),
    )


def _count_fence_errors(starts: Iterable[Mapping[str, Any]]) -> int:
    """Starts of an account whose fence is not above all fences before it; 0 means no fence."""
    highest: dict[int, int] = {}
    errors = 0
    for line in starts:
        if line["fence"]:
            errors += line["fence"] <= highest.get(line["account"], 0)
            highest[line["account"]] = max(line["fence"], highest.get(line["account"], 0))
    return errors
