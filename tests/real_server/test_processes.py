"""Two dozen processes on one lock, what they wrote down, and whether a correct lock allows it.

The controls at the end put broken locks before the same checkers: a checker that convicts nobody
proves nothing.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_locks import Locks
from tests.histories.contradiction import Verdict, judge
from tests.histories.recorder import VARIABLE as HISTORY_VARIABLE
from tests.histories.requests import read as read_history
from tests.servers.embedded import EmbeddedServer
from tests.support.child import ROOT
from tests.support.contenders import NAME
from tests.support.history import (
    Section,
    fence_errors,
    fifo_inversions,
    longest_gap,
    overlaps,
    read,
)
from tests.support.redis_keys import keys_of_locks
from tests.support.waiting import wait_until

PROCESSES = 24


class Run:
    """The contenders at work."""

    def __init__(self, process: "subprocess.Popen[str]", directory: Path) -> None:
        self._process = process
        self._directory = directory
        assert process.stdout is not None
        self.pids = [int(pid) for pid in process.stdout.readline().split()]
        self.killed: dict[int, float] = {}

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self, pid: int) -> None:
        # Taken before: up to here it may have been inside.
        self.killed[pid] = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def sections(self) -> list[Section]:
        """What they did, once they are done."""
        out, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, f"{out}\n{err}"
        failures = [path.read_text() for path in self._directory.glob("*.failed")]
        assert not failures, failures[0]
        return read(self._directory, self.killed)

    def verdict(self) -> Verdict:
        """What the checker says about every request and reply."""
        return judge(read_history([self._directory / "history"]))


@contextmanager
def contenders(
    server: EmbeddedServer,
    directory: Path,
    *,
    kind: str = "engine",
    seconds: float = 3.0,
    limit: int = 1,
    ttl: float = 5.0,
) -> Iterator[Run]:
    words = [server.url, str(directory), kind, str(PROCESSES), str(seconds), str(limit), str(ttl)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.contenders", *words],
        cwd=ROOT,
        env={**os.environ, HISTORY_VARIABLE: str(directory / "history")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = Run(process, directory)
    try:
        yield run
    finally:
        if not run.is_over:
            for pid in run.pids:
                os.kill(pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def clean(valkey: EmbeddedServer) -> EmbeddedServer:
    valkey.flush()
    return valkey


def expect_nothing_left(server: EmbeddedServer) -> None:
    keys: Any = server.ask("KEYS", "*")
    assert "celery-locks:{0}:fence" in keys
    assert keys_of_locks(keys) == []


@pytest.mark.parametrize("limit", [1, 4], ids=["mutex", "semaphore"])
def test_many_processes_keep_the_promises(
    clean: EmbeddedServer, tmp_path: Path, limit: int
) -> None:
    with contenders(clean, tmp_path, limit=limit) as run:
        sections = run.sections()
    assert len(sections) > 50, "too little happened to prove anything"
    assert len({section.process for section in sections}) == PROCESSES
    assert overlaps(sections, limit) == []
    assert fence_errors(sections, limit) == []
    assert fifo_inversions(sections) == []
    verdict = run.verdict()
    assert verdict.requests > 3 * len(sections)
    assert verdict.is_linearizable, str(verdict)
    expect_nothing_left(clean)
    if limit > 1:
        assert overlaps(sections, limit - 1), "the slots were never all in use"


@pytest.mark.parametrize("limit", [1, 4], ids=["mutex", "semaphore"])
def test_killed_processes_do_not_stop_the_others(
    clean: EmbeddedServer, tmp_path: Path, limit: int
) -> None:
    """kill -9 of holders, who block for their ttl at most, and of waiters, who do not block."""
    locks, ttl = Locks.from_url(clean.url), 1.5
    with contenders(clean, tmp_path, seconds=6, limit=limit, ttl=ttl) as run:
        for role in ("holders", "waiters", "waiters", "holders", "waiters"):
            kill_one(run, locks, role)
        sections = run.sections()
    assert len(run.killed) == 5
    assert len(sections) > 10
    assert overlaps(sections, limit) == []
    assert fence_errors(sections, limit) == []
    verdict = run.verdict()
    assert verdict.is_linearizable, str(verdict)
    # The ttl, the claim of a waiter that is stopped on its way in, a poll, and a machine with other
    # work.
    assert longest_gap(sections) < ttl + 1.0 + 0.8 + 0.7
    last = max(section.entered for section in sections)
    assert last > max(run.killed.values()) + 0.5, "nobody came in after the last kill"
    wait_until(lambda: locks.info(NAME) is None, ttl + 1)
    lease = locks.acquire(NAME, limit=limit)
    assert lease is not None
    lease.release()
    expect_nothing_left(clean)
    locks.close()


def kill_one(run: Run, locks: Locks, role: str) -> None:
    """Stop one that was what we want to kill, and kill it if it still is; else it goes on."""

    def pids() -> list[int]:
        info = locks.info(NAME)
        found = [one.pid for one in getattr(info, role)] if info else []
        return [pid for pid in found if pid not in run.killed]

    def found() -> bool:
        candidates = pids()
        if not candidates:
            return False
        pid = random.choice(candidates)
        os.kill(pid, signal.SIGSTOP)
        if pid in pids():
            run.kill(pid)
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(found, 15, every=0.001, what=f"one of the {role} to kill")


def test_fences_rise_over_wipes(clean: EmbeddedServer, tmp_path: Path) -> None:
    """Without the guard FLUSHALL lets two in; their fences still tell who is the later one."""
    with contenders(clean, tmp_path, kind="unguarded", seconds=2) as run:
        flush_now_and_then(clean, run)
        sections = run.sections()
    assert len(sections) > 10
    assert fence_errors(sections, limit=PROCESSES) == []


def test_wipes_let_nobody_in_beside_a_holder(clean: EmbeddedServer, tmp_path: Path) -> None:
    """All know the server before it loses its data, so each of them waits for the others."""
    with contenders(clean, tmp_path, seconds=12, ttl=1) as run:
        logs = [tmp_path / f"{pid}.jsonl" for pid in run.pids]
        wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), 10)
        for _ in range(3):
            clean.flush()
            time.sleep(1.5)  # the pace of the wipes: longer than the guard, so that work goes on
        wiped = time.monotonic()
        sections = run.sections()
    assert overlaps(sections) == []
    assert fence_errors(sections, limit=1) == []
    assert max(section.entered for section in sections) > wiped, "nobody came in after the wipes"


def flush_now_and_then(server: EmbeddedServer, run: Run) -> None:
    while not run.is_over:
        server.flush()
        time.sleep(0.1)  # the pace of the wipes, not a hope


def test_control_counter_as_fence_is_rejected(clean: EmbeddedServer, tmp_path: Path) -> None:
    """INCR begins again after FLUSHALL: the very fault that the hybrid clock is there for."""
    with contenders(clean, tmp_path, kind="broken", seconds=1, ttl=5) as run:
        flush_now_and_then(clean, run)
        sections = run.sections()
    assert fence_errors(sections, limit=PROCESSES)


def test_control_blind_release_is_rejected(clean: EmbeddedServer, tmp_path: Path) -> None:
    """A ttl shorter than the work and a delete that compares no token: two are inside."""
    with contenders(clean, tmp_path, kind="broken", seconds=1, ttl=0.002) as run:
        sections = run.sections()
    assert overlaps(sections)


def test_control_unfair_lock_is_rejected() -> None:
    """Made by hand: polling locks say nothing about who stands in line."""
    first = section(1, asked=0.0, queued=0.1, entered=3.0, left=4.0, fence=30)
    second = section(2, asked=0.5, queued=0.6, entered=1.0, left=2.0, fence=20)
    assert fifo_inversions([first, second])
    together = section(2, asked=0.05, queued=0.6, entered=1.0, left=2.0, fence=20)
    assert fifo_inversions([first, together]) == [], "they came at the same time"


def test_checkers_see_what_they_should() -> None:
    one = section(1, asked=0, entered=1, left=3, fence=10)
    two = section(2, asked=0, entered=2, left=4, fence=11)
    assert overlaps([one, two])
    assert overlaps([one, two], limit=2) == []
    assert fence_errors([one, two]) == []
    assert fence_errors([one, section(2, asked=0, entered=2, left=4, fence=10)])
    assert fence_errors([one, section(2, asked=2, entered=3, left=4, fence=9)], limit=2)
    assert fence_errors([one, section(2, asked=0, entered=3.5, left=4, fence=9)])
    assert fence_errors([one, section(2, asked=0, entered=3.5, left=4, fence=9)], limit=2) == []
    assert longest_gap([one, two]) == 1


def section(process: int, **times: Any) -> Section:
    return Section(process, f"token{process}", **{"queued": float("inf"), **times})
