"""One background thread: it starts when a job is due, ends when none is, and starts again."""

import os
import threading
from collections.abc import Callable

from celery_locks.clock import now
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


def test_job_that_comes_while_the_thread_goes_to_sleep_is_run() -> None:
    """Between the last look and the sleep a lease may come; nobody would renew it."""
    job = Job()
    thread = BackgroundThread([job], Reports())
    for runs in range(1, 500):
        job.due = now()
        thread.wake_by(job.due)
        wait_until(lambda runs=runs: job.runs == runs, what=f"run {runs}")


def test_waking_a_thread_that_runs_takes_no_lock() -> None:
    """A caller that a time limit interrupts while it holds one would block all others forever."""
    job = Job()
    thread = BackgroundThread([job], Reports())
    job.due = now()
    thread.wake_by(job.due)
    wait_until(lambda: job.runs == 1, what="the first run")
    holds = threading.Thread(target=thread._lock.acquire)
    holds.start()
    holds.join()
    job.due = now()
    thread.wake_by(job.due)
    wait_until(lambda: job.runs == 2, what="the second run")


def test_watched_descriptor_is_seen_without_jobs() -> None:
    """A child's death comes long after the last job."""
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
