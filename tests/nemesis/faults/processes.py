"""Processes of a worker are stopped or killed, while one of its children holds a lock."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.nemesis.faults.fault import LONG, Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig


@contextmanager
def stop_child(rig: Rig, holder: Run) -> Iterator[None]:
    os.kill(holder.pid, signal.SIGSTOP)
    yield
    os.kill(holder.pid, signal.SIGCONT)


@contextmanager
def stop_main(rig: Rig, holder: Run) -> Iterator[None]:
    """Only the main process: its children go on."""
    worker = rig.worker_of(holder.pid)
    worker.signal(signal.SIGSTOP)
    yield
    worker.signal(signal.SIGCONT)


@contextmanager
def stop_worker(rig: Rig, holder: Run) -> Iterator[None]:
    worker = rig.worker_of(holder.pid)
    worker.signal_group(signal.SIGSTOP)
    yield
    worker.signal_group(signal.SIGCONT)


@contextmanager
def kill_child(rig: Rig, holder: Run) -> Iterator[None]:
    os.kill(holder.pid, signal.SIGKILL)
    yield


@contextmanager
def kill_main(rig: Rig, holder: Run) -> Iterator[None]:
    worker = rig.worker_of(holder.pid)
    worker.signal(signal.SIGKILL)
    yield
    rig.replace(worker)


@contextmanager
def kill_worker(rig: Rig, holder: Run) -> Iterator[None]:
    worker = rig.worker_of(holder.pid)
    worker.signal_group(signal.SIGKILL)
    yield
    rig.replace(worker)


FAULTS = (
    Fault("stop_child", "the holder's pool child is stopped", stop_child, LONG),
    Fault("stop_main", "the worker's main process is stopped", stop_main, LONG),
    Fault("stop_worker", "the whole worker is stopped", stop_worker, LONG),
    Fault("kill_child", "`kill -9` of the holder's pool child", kill_child, free_within=1.0),
    Fault("kill_main", "`kill -9` of the worker's main process", kill_main, 1.0),
    Fault("kill_worker", "`kill -9` of the whole worker", kill_worker, 1.0),
)
