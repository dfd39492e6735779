"""A clock that only the test moves, in place of ``celery_locks.clock.now``; no thread, no sleep."""

import sys
import threading
from typing import Any

import pytest

from celery_locks import clock


class VirtualClock:
    """The time of all deadlines for the thread of the test, from a moment that means nothing.

    Other threads, such as the renewer's of an earlier test, still see the real clock.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._real_now = clock.now
        # Ahead of the real clock: a default that was bound before the clock was replaced is past.
        self.time = clock.now() + 3600.0

    def __call__(self) -> float:
        return self.time if threading.get_ident() == self._thread else self._real_now()

    def advance(self, seconds: float) -> None:
        self.time += seconds


def replace_everywhere(monkeypatch: pytest.MonkeyPatch, name: str, old: Any, new: Any) -> None:
    """Replace an object in every module of the package that has imported it under ``name``."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("celery_locks") and vars(module).get(name) is old:
            monkeypatch.setattr(module, name, new)


def use_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    virtual = VirtualClock()
    replace_everywhere(monkeypatch, "now", clock.now, virtual)
    return virtual
