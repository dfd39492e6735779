"""What a holder is told: events, callbacks, and how long a call kept us."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_locks import LeaseLost, LockEvent, subscribe
from celery_locks.clock import now
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until


class News:
    """Collects every event with the moment it came; use as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: list[tuple[float, LockEvent]] = []

    def __enter__(self) -> "News":
        self._end = subscribe(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _hear(self, event: LockEvent) -> None:
        with self._lock:
            self._heard.append((now(), event))

    def of(self, lease: Any) -> list[str]:
        """The kinds of events about this lease, in order."""
        return [event.kind for _, event in list(self._heard) if event.token == lease.token]

    def moment(self, lease: Any, kind: str) -> float | None:
        """When, on the clock of deadlines, the first event of this kind came."""
        about = [at for at, e in list(self._heard) if e.token == lease.token and e.kind == kind]
        return about[0] if about else None

    def wait(self, lease: Any, kind: str, deadline: float = 15.0) -> float:
        """Wait for such an event; returns when it came."""
        return wait_until(
            lambda: self.moment(lease, kind),
            deadline,
            what=f"{kind} of {lease}, not {self.of(lease)}",
        )


class Callback:
    """An ``on_lost`` that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, LeaseLost]] = []

    def __call__(self, lease: Any, error: LeaseLost) -> None:
        self.calls.append((lease, error))


# Far less than any time that a call is given: who waits for that is still found out.
BUSY = 0.35


@contextmanager
def at_most(seconds: float, what: str = "the call") -> Iterator[Callable[[], float]]:
    """Fail if the block takes longer; ``BUSY`` and stalls are left to a machine with other work."""
    with measure_stalls() as stalled:
        began = time.monotonic()
        yield lambda: time.monotonic() - began
        took, forgiven = time.monotonic() - began, BUSY + stalled()
    assert took <= seconds + forgiven, f"{what} took {took:.3f} s, more than {seconds:.3f} s"
