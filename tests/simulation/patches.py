"""What is replaced in the package so that many processes live in one: the clock and the renewer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from celery_locks import clock
from celery_locks.core import cleanup_job
from celery_locks.core.renewer import renewer
from tests.simulation.server import START
from tests.support.virtual_clock import replace_everywhere

_real_now = clock.now


class Current:
    """The process whose code runs now; it stands for ``clock.now`` and for the renewer.

    In another thread, such as a background thread of an earlier test, both are the real ones.
    """

    process: Any = None

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    @property
    def _is_simulated(self) -> bool:
        return threading.get_ident() == self._thread

    def now(self) -> float:
        moment: float = self.process.now() if self._is_simulated else _real_now()
        return moment

    def wall_clock(self) -> float:
        if not self._is_simulated:
            return time.time()
        seconds: float = self.process.world.scheduler.time
        return START / 1e6 + seconds

    @property
    def random(self) -> Random:
        if not self._is_simulated:
            return Random()
        generator: Random = self.process.world.scheduler.random
        return generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.process.renewer if self._is_simulated else renewer, name)


class _Dice:
    """The module ``random`` as the package uses it, from the seed."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current.random, name)


@contextmanager
def simulated_core() -> Iterator[Current]:
    """Let the package's code take time, chance and its renewer from the current process."""
    current = Current()
    with pytest.MonkeyPatch.context() as patch:
        replace_everywhere(patch, "now", clock.now, current.now)
        replace_everywhere(patch, "renewer", renewer, current)
        patch.setattr(cleanup_job, "random", _Dice(current))
        patch.setattr(cleanup_job, "time", current.wall_clock)
        patch.setattr(logging.getLogger("celery_locks"), "disabled", True)
        yield current
