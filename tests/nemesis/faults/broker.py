"""The broker is stopped or killed; it keeps its messages on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.nemesis.faults.fault import LONG, Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig


@contextmanager
def stop_broker(rig: Rig, holder: Run) -> Iterator[None]:
    rig.broker.pause()
    yield
    rig.broker.resume()


@contextmanager
def kill_broker(rig: Rig, holder: Run) -> Iterator[None]:
    rig.broker.kill()
    yield
    rig.broker.restart()


FAULTS = (
    Fault("stop_broker", "the broker is stopped", stop_broker, LONG),
    Fault("kill_broker", "`kill -9` of the broker, started again", kill_broker, 1.5),
)
