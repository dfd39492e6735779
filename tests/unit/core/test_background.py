"""One background thread, alone: when it wakes, what it runs, what survives which failure."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks.clock import now
from celery_locks.core import background as module
from celery_locks.core.background import BackgroundThread
from celery_locks.logs import Reports
from tests.support.still_renewer import StillRenewer, StillThread
from tests.support.virtual_clock import VirtualClock

SOON = 30.0


class Job:
    """A job that is due when a test says so, and then once."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.due = math.inf
        self.runs = 0
        self._ran = threading.Semaphore(0)
        self._then = then

    def run(self) -> None:
        self.due = math.inf
        self.runs += 1
        try:
            self._then()
        finally:
            self._ran.release()

    def wait_for_run(self) -> None:
        assert self._ran.acquire(timeout=SOON), "the job was not run"


class FailingJob:
    """Always due, and fails."""

    def __init__(self, due: float) -> None:
        self.due, self.runs = due, 0

    def run(self) -> None:
        self.runs += 1
        raise KeyError("a bug of ours")


def fail() -> None:
    raise KeyError("a bug of ours")


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    yield made
    for ends in made:
        for end in ends:
            os.close(end)


def test_job_that_comes_while_the_thread_goes_to_sleep_is_run() -> None:
    """Between the last look and the sleep a lease may come; nobody would renew it."""
    job = Job()
    thread = BackgroundThread([job], Reports())
    for _ in range(1000):
        job.due = now()
        thread.wake_by(job.due)
        job.wait_for_run()


def test_job_that_comes_between_the_look_and_the_sleep_is_seen_by_a_second_look() -> None:
    """Who adds it finds the thread awake and does not wake it."""
    job = Job()

    class Thread(BackgroundThread):
        def _first_due(self) -> float:
            first = super()._first_due()
            if job.runs == 0 and job.due == math.inf:
                job.due = now()
                self.wake_by(job.due)
            return first

    Thread([job], Reports()).wake_by(now())
    job.wait_for_run()


def test_job_that_is_added_wakes_the_thread_if_it_is_due_before_the_others(
    virtual_clock: VirtualClock,
) -> None:
    thread = StillThread([], Reports())
    for due, wakes in ((virtual_clock() + 5, 1), (virtual_clock() + 9, 1), (virtual_clock(), 2)):
        job = Job()
        job.due = due
        thread.add_job(job)
        assert thread.wakes == wakes
        thread._wakes_at = virtual_clock() + 5


def test_waking_a_thread_that_runs_takes_no_lock() -> None:
    """A caller that a time limit interrupts while it holds one would block all others forever."""
    job = Job()
    thread = BackgroundThread([job], Reports())
    job.due = now()
    thread.wake_by(job.due)
    job.wait_for_run()
    holds = threading.Thread(target=thread._lock.acquire)
    holds.start()
    holds.join()
    job.due = now()
    thread.wake_by(job.due)
    job.wait_for_run()


def test_start_that_fails_is_repeated_by_the_next_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise everybody would believe that the thread runs, and nothing would be renewed."""
    job = Job()
    thread = BackgroundThread([job], Reports())
    start, pipe, opened = module.start_thread, os.pipe, list[int]()

    def no_thread(*_: Any) -> None:
        monkeypatch.setattr(module, "start_thread", start)
        raise RuntimeError("can't start new thread")

    def record() -> tuple[int, int]:
        opened.extend(ends := pipe())
        return ends

    monkeypatch.setattr(module, "start_thread", no_thread)
    monkeypatch.setattr(os, "pipe", record)
    job.due = now()
    with pytest.raises(RuntimeError):
        thread.wake_by(job.due)
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    thread.wake_by(job.due)
    job.wait_for_run()


def test_watched_descriptor_is_seen_without_jobs(pipes: list[tuple[int, int]]) -> None:
    """A child's death comes long after the last job."""
    (readable, writable), *_ = pipes
    seen = threading.Semaphore(0)
    running: list[bool] = []
    thread = BackgroundThread([], Reports())

    def record() -> None:
        running.append(thread.is_running)
        seen.release()

    thread.watch(readable, record)
    assert not seen.acquire(timeout=0.05)
    os.write(writable, b"!")
    assert seen.acquire(timeout=SOON)
    assert not seen.acquire(timeout=0.05), "once, though it stays readable"
    assert running == [True], "the end of the process waits for it"


def test_watcher_that_fails_costs_the_others_nothing(
    pipes: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is the death of a child whose locks are to be released."""
    seen = threading.Event()
    thread = BackgroundThread([], Reports())
    for (readable, writable), then in zip(pipes, (fail, fail, seen.set), strict=True):
        os.write(writable, b"!")
        thread.watch(readable, then)
    assert seen.wait(SOON)
    assert len(caplog.records) == 1, caplog.text


def test_descriptor_that_is_closed_does_not_stop_the_jobs(
    pipes: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """``poll`` reports it, as readable as any other."""
    (readable, _), *_ = pipes
    job, thread = Job(), BackgroundThread([], Reports())
    gone = os.dup(readable)
    os.close(gone)
    thread.watch(gone, lambda: None)
    job.due = now()
    thread.add_job(job)
    job.wait_for_run()


def test_jobs_run_in_order_though_one_ends_with_any_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The renewals are first; a release that fails oddly must not end the thread either."""
    order: list[str] = []

    def exit_thread() -> None:
        order.append("fails")
        raise SystemExit("nobody may end this thread")

    first = Job(lambda: order.append("first"))
    fails, last = Job(exit_thread), Job(lambda: order.append("last"))
    thread = BackgroundThread([first, fails, last], Reports())
    first.due = fails.due = last.due = now()
    thread.wake_by(first.due)
    last.wait_for_run()
    assert order == ["first", "fails", "last"]
    assert len(caplog.records) == 1
    first.due = now()
    thread.wake_by(first.due)
    first.wait_for_run()


def test_job_that_fails_pauses_and_the_others_do_not(
    virtual_clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Always due and always failing, it would take all of a processor."""
    bad, good = FailingJob(virtual_clock()), Job()
    thread = StillThread([bad, good], Reports())
    for _ in range(10):
        good.due = virtual_clock()
        thread._run_jobs()
        virtual_clock.advance(0.125)
    assert good.runs == 10
    assert bad.runs == 5, "every quarter of a second"
    assert len(caplog.records) == 1, "once a minute"


def test_end_of_the_process_waits_for_jobs_that_are_due_and_not_for_failed_ones(
    still_renewer: StillRenewer, virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that keeps failing pauses: the exit must not hang on it."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        still_renewer.run_due()

    monkeypatch.setattr("celery_locks.core.renewer.original", lambda *_: sleep)
    good, bad = Job(), FailingJob(virtual_clock())
    good.due = virtual_clock()
    for job in (good, bad):
        still_renewer.add_job(job)
    still_renewer.wait_idle(1.0)
    assert (good.runs, bad.runs, len(slept)) == (1, 1, 1)
