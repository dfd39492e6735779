"""How long a busy machine kept this process waiting: what a test may add to a bound on time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STEP = 0.005
# Between a question and its answer several threads and processes take turns, and each may wait.
_TURNS = 3


@contextmanager
def measure_longest_stall() -> Iterator[Callable[[], float]]:
    """Do as ``measure_stalls``, but for the longest single one: a bound on one moment's delay."""
    longest, over = [0.0], threading.Event()

    def sleep_on() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(_STEP)
            longest[0] = max(longest[0], time.monotonic() - began - 2 * _STEP)

    thread = threading.Thread(target=sleep_on, name="measure-longest-stall", daemon=True)
    thread.start()
    try:
        yield lambda: longest[0]
    finally:
        over.set()
        thread.join()


@contextmanager
def measure_stalls() -> Iterator[Callable[[], float]]:
    """``with measure_stalls() as stalled:`` and later ``stalled()``: seconds to be forgiven so far.

    A thread sleeps for 5 ms again and again and adds up by how much it overslept: on an idle
    machine nearly nothing, so a bound stays as strict as it is written.
    """
    overslept, over = [0.0], threading.Event()

    def sleep_on() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(_STEP)
            overslept[0] += max(0.0, time.monotonic() - began - 2 * _STEP)

    thread = threading.Thread(target=sleep_on, name="measure-stalls", daemon=True)
    thread.start()
    try:
        yield lambda: _TURNS * overslept[0]
    finally:
        over.set()
        thread.join()
