"""Background threads: native threads that run jobs when they are due.

There is one thread per server, and one for jobs that belong to no server. A server that is slow or
frozen blocks its own thread only, so it never delays the renewals or releases of another server,
nor a job of another thread. A thread starts with its first job and lives as long as the process: a
process uses few servers. In a thread the jobs run in the order in which they were added.

Every step is isolated: a job or descriptor that fails unexpectedly affects only itself, and the log
reports it at most once a minute. A job that failed pauses before it runs again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from celery_locks.clock import now
from celery_locks.logs import Reports
from celery_locks.unpatched import native_rlock, original, start_thread

# The longest sleep while a job has a due time: poll's clock stops while the machine is suspended.
_MAX_SLEEP = 1.0
# Pauses after an unexpected failure: of the thread itself, and of a job.
_THREAD_PAUSE = 0.02
_JOB_PAUSE = 0.25


class BackgroundJob(Protocol):
    """Work that runs in a background thread whenever ``due`` has passed."""

    @property
    def due(self) -> float: ...
    def run(self) -> None: ...


class BackgroundThread:
    """One native thread and its jobs."""

    def __init__(self, jobs: list[BackgroundJob], reports: Reports) -> None:
        self.jobs = jobs
        self.is_running = False
        self._reports = reports
        self._paused_until: dict[int, float] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        # Reentrant: a signal handler may wake the thread while its own thread is waking it.
        self._lock = native_rlock()
        self._wakeup_pipe: tuple[int, int] | None = None
        self._wakes_at = math.inf

    def add_job(self, job: BackgroundJob) -> None:
        """Run ``job`` whenever it is due, until the process ends."""
        self.jobs.append(job)
        self.wake_by(job.due)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in this thread, when ``descriptor`` becomes readable."""
        self._watched[descriptor] = callback
        self._wake()

    def wake_by(self, due: float) -> None:
        """Wake the thread if it would sleep past ``due``; acquire and release rarely need it."""
        if due < self._wakes_at:
            self._wake()

    def due_of(self, job: BackgroundJob) -> float:
        """Return when ``job`` runs next: not before its pause after a failure is over."""
        return max(job.due, self._paused_until.get(id(job), -math.inf))

    def _wake(self) -> None:
        if self._wakeup_pipe is None:
            with self._lock:
                if self._wakeup_pipe is None:
                    self._start()
                    return
        with suppress(BlockingIOError):  # a full pipe wakes it too
            # eventlet's write would switch to its hub, and refuses two writers at once.
            original("os", "write")(self._wakeup_pipe[1], b"!")

    def _start(self) -> None:
        self._wakeup_pipe = pipe = os.pipe()
        try:
            os.set_blocking(pipe[0], False)
            os.set_blocking(pipe[1], False)
            self._wakes_at = -math.inf
            start_thread(self._run, pipe[0])
        except BaseException:
            # Without this, later callers would believe that the thread runs.
            self._wakeup_pipe, self._wakes_at = None, math.inf
            for end in pipe:
                os.close(end)
            raise

    def _run(self, pipe: int) -> None:
        while True:
            went_well = self._run_guarded("its sleep", partial(self._sleep, pipe))
            if not (self._run_guarded("its jobs", self._run_jobs) and went_well):
                original("time", "sleep")(_THREAD_PAUSE)

    def _run_guarded(self, what: str, step: Callable[[], None]) -> bool:
        """Run a step and report its failure; no error may end the thread unnoticed."""
        try:
            step()
        except BaseException:  # noqa: BLE001
            self._reports.failure(f"the lock background thread failed at {what} and continues")
            return False
        return True

    def _sleep(self, pipe: int) -> None:
        poll = original("select", "poll")()
        watched = dict(self._watched)
        for descriptor in (pipe, *watched):
            poll.register(descriptor, original("select", "POLLIN"))
        self._wakes_at = self._first_due()
        # Read again: a job that came in between saw the thread awake and did not wake it.
        seconds = min(self._wakes_at, self._first_due()) - now()
        ready = poll.poll(
            None if seconds == math.inf else max(0.0, min(seconds, _MAX_SLEEP)) * 1000
        )
        self._wakes_at = -math.inf
        for descriptor, _ in ready:
            if descriptor == pipe:
                original("os", "read")(pipe, 4096)
            elif self._watched.pop(descriptor, None):
                self._run_step("a watched descriptor", watched[descriptor])

    def _run_step(self, what: str, step: Callable[[], None]) -> bool:
        self.is_running = True
        try:
            return self._run_guarded(what, step)
        finally:
            self.is_running = False

    def _first_due(self) -> float:
        return min((self.due_of(job) for job in self.jobs), default=math.inf)

    def _run_jobs(self) -> None:
        for job in list(self.jobs):
            if self.due_of(job) > now():
                continue
            if not self._run_step("a job", job.run):
                self._paused_until[id(job)] = now() + _JOB_PAUSE
