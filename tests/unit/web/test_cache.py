"""One value for all callers, loaded no more often than it should be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_locks.web.cache import SharedCache
from tests.support.waiting import wait_until

DEADLINE = 30.0


class Source:
    """Counts how often it is loaded; waits at its gate, fails if told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loads = 0
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.cache = SharedCache(self.load, interval=5.0, max_age=30.0, clock=lambda: self.now)

    def load(self) -> int:
        self.loads += 1
        answer = self.loads
        assert self.gate.wait(DEADLINE)
        if self.trouble:
            raise self.trouble
        return answer


@pytest.fixture
def source() -> Source:
    return Source()


def test_latest_returns_at_once_and_loads_once_for_all(source: Source) -> None:
    """A hundred viewers cost one broadcast, and none of them waits for it."""
    source.gate.clear()
    assert [source.cache.latest() for _ in range(100)] == [None] * 100
    wait_until(lambda: source.loads == 1, DEADLINE)
    source.gate.set()
    wait_until(lambda: source.cache.latest() is not None, DEADLINE)
    assert source.loads == 1


def test_latest_is_loaded_again_when_it_is_old(source: Source) -> None:
    source.cache.fresh()
    source.now += 4.9
    assert source.cache.latest()
    assert source.loads == 1
    source.now += 0.2
    source.cache.latest()
    wait_until(lambda: source.loads == 2, DEADLINE)


def test_latest_is_never_older_than_its_maximum_age(source: Source) -> None:
    """After a night without viewers, the first viewer does not get yesterday's value."""
    source.cache.fresh()
    source.gate.clear()
    source.now += 31.0
    assert source.cache.latest() is None
    source.gate.set()


def test_fresh_is_loaded_after_the_call(source: Source) -> None:
    """A load that is already running may have read what was true before the call."""
    source.gate.clear()
    source.cache.latest()
    wait_until(lambda: source.loads == 1, DEADLINE)
    source.now += 1.0
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(source.cache.fresh) for _ in range(2)]
        source.gate.set()
        assert {call.result(DEADLINE).value for call in calls} == {2}
    assert source.loads == 2


def test_fresh_raises_the_error_and_latest_keeps_the_last_value(source: Source) -> None:
    first = source.cache.fresh()
    source.trouble = OSError("gone")
    source.now += 1.0
    with pytest.raises(OSError, match="gone"):
        source.cache.fresh()
    assert source.cache.latest() is first
