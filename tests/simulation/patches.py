"""What is replaced in the package so that many processes live in one: the clock and the renewer."""

from __future__ import annotations

import logging
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


class Current:
    """The process whose code runs now; it stands for ``clock.now`` and for the renewer."""

    process: Any = None

    def now(self) -> float:
        moment: float = self.process.now()
        return moment

    def wall_clock(self) -> float:
        seconds: float = self.process.world.scheduler.time
        return START / 1e6 + seconds

    @property
    def random(self) -> Random:
        generator: Random = self.process.world.scheduler.random
        return generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.process.renewer, name)


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
