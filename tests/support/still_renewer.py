"""The renewer without its threads: the test runs the jobs that are due."""

import math
from collections.abc import Hashable
from typing import Any

import pytest

from celery_locks.core import cleanup_job
from celery_locks.core.background import BackgroundThread
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import Renewer, renewer
from tests.support.virtual_clock import replace_everywhere


class StillThread(BackgroundThread):
    """Its jobs run when the test says so; counts how often it would have been woken."""

    wakes = 0

    def _wake(self) -> None:
        self.wakes += 1


class StillRenewer(Renewer):
    """The renewer of the whole process, if it is put in place by ``use_still_renewer``."""

    def _make_thread(
        self, threads: dict[Hashable, BackgroundThread], server: Hashable, jobs: Any
    ) -> BackgroundThread:
        return threads.setdefault(server, StillThread(jobs, self.reports))

    def run_due(self) -> None:
        """Run every job that is due now, once, as the threads would."""
        for thread in (*self._threads.values(), *self._job_threads.values()):
            thread._run_jobs()

    @property
    def first_due(self) -> float:
        """When the next renewal or pending release is due."""
        return min(thread._first_due() for thread in self._threads.values())

    @property
    def pending(self) -> dict[str, PendingRelease]:
        """The pending releases by token."""
        return dict(self._pending_releases)


def use_still_renewer(monkeypatch: pytest.MonkeyPatch) -> StillRenewer:
    monkeypatch.setattr(cleanup_job, "_INTERVAL", math.inf)
    still = StillRenewer()
    replace_everywhere(monkeypatch, "renewer", renewer, still)
    return still
