"""One background thread: it starts when a job is due, ends when none is, and starts again."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_locks.clock import now
from celery_locks.core import background
from celery_locks.core.background import BackgroundThread
from celery_locks.logs import Reports
from tests.support.waiting import wait_until


class Job:
    """Runs once each time its due date is set."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.due = float("inf")
        self.runs = 0
        self._then = then

    def run(self) -> None:
        self.due = float("inf")
        self.runs += 1
        self._then()


def open_files() -> int:
    return len(os.listdir(Path("/proc/self/fd")))


def test_thread_without_work_ends_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that talked to many servers must not keep a thread and a pipe for each."""
    monkeypatch.setattr(background, "_IDLE", 0.01)
    before = open_files()
    job = Job()
    thread = BackgroundThread([job], Reports())
    for runs in (1, 2, 3):
        job.due = now()
        thread.wake_by(job.due)
        wait_until(lambda runs=runs: job.runs == runs, what=f"run {runs}")
        wait_until(lambda: thread._wakeup_pipe is None, what="its end")
    wait_until(lambda: open_files() <= before, what="the pipes to be closed")


def test_job_that_comes_while_the_thread_ends_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the end a lease may come; nobody would renew it."""
    monkeypatch.setattr(background, "_IDLE", 0.0)
    job = Job()
    thread = BackgroundThread([job], Reports())
    for runs in range(1, 500):
        job.due = now()
        thread.wake_by(job.due)
        wait_until(lambda runs=runs: job.runs == runs, what=f"run {runs}")


def test_watched_descriptor_keeps_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's death comes long after the last job."""
    monkeypatch.setattr(background, "_IDLE", 0.01)
    readable, writable = os.pipe()
    seen = threading.Event()
    thread = BackgroundThread([], Reports())
    thread.watch(readable, seen.set)
    assert not seen.wait(0.1)
    os.write(writable, b"!")
    assert seen.wait(10)
    os.close(readable)
    os.close(writable)


def test_jobs_run_in_order_though_one_fails() -> None:
    """The renewals are first; a release that fails oddly must not end the thread either."""
    order: list[str] = []
    first = Job(lambda: order.append("first"))
    fails = Job(lambda: order.append("fails") or {}["a bug of ours"])
    last = Job(lambda: order.append("last"))
    thread = BackgroundThread([first, fails, last], Reports())
    first.due = fails.due = last.due = now()
    thread.wake_by(first.due)
    wait_until(lambda: last.runs, what="the last job")
    assert order == ["first", "fails", "last"]
