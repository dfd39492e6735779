"""Wall clocks jump by an hour; at the end of the fault they jump back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tests.nemesis.clocks import PACKAGE, FakeClock, library
from tests.nemesis.faults.fault import Cause, Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig
from tests.nemesis.tasks import TTL

HOUR = 3600


@contextmanager
def _jump(clock: FakeClock, seconds: int) -> Iterator[None]:
    clock.jump(seconds)
    yield
    clock.jump(0)


def jump_of_server(seconds: int) -> Cause:
    def cause(rig: Rig, holder: Run) -> AbstractContextManager[None]:
        return _jump(rig.clocks[0], seconds)

    return cause


def jump_of_worker(seconds: int) -> Cause:
    """The clock of the worker that runs the holder; the other worker's stays."""

    def cause(rig: Rig, holder: Run) -> AbstractContextManager[None]:
        index = rig.workers.index(rig.worker_of(holder.pid))
        return _jump(rig.clocks[1 + index], seconds)

    return cause


def _missing() -> str:
    if library():
        return ""
    return f"libfaketime is not installed: `apt-get install {PACKAGE}`."


_clocked = partial(Fault, seconds=TTL, rig="clocked", missing=_missing)

FAULTS = (
    _clocked(
        "server_clock_forward",
        "the lock server's clock is an hour ahead",
        jump_of_server(HOUR),
        forgets="at once",
    ),
    _clocked(
        "server_clock_back",
        "the lock server's clock is an hour behind",
        jump_of_server(-HOUR),
        forgets="at its end",
    ),
    _clocked(
        "worker_clock_forward",
        "the worker's clock is an hour ahead",
        jump_of_worker(HOUR),
    ),
    _clocked(
        "worker_clock_back",
        "the worker's clock is an hour behind",
        jump_of_worker(-HOUR),
    ),
)
