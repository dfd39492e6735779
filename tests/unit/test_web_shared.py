"""One value for everybody who looks, got no more often than it should be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_locks.web.shared import Shared
from tests.support.waiting import wait_until

DEADLINE = 30.0


class Source:
    """Counts how often it is asked; waits at its gate, fails if told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.shared = Shared(self.get, every=5.0, oldest=30.0, clock=lambda: self.now)

    def get(self) -> int:
        self.asked += 1
        answer = self.asked
        assert self.gate.wait(DEADLINE)
        if self.trouble:
            raise self.trouble
        return answer


@pytest.fixture
def source() -> Source:
    return Source()


def test_latest_answers_at_once_and_asks_once_for_all(source: Source) -> None:
    """A hundred viewers cost one broadcast, and none of them waits for it."""
    source.gate.clear()
    assert [source.shared.latest() for _ in range(100)] == [None] * 100
    wait_until(lambda: source.asked == 1, DEADLINE)
    source.gate.set()
    wait_until(lambda: source.shared.latest() is not None, DEADLINE)
    assert source.asked == 1


def test_latest_is_got_again_when_it_is_old(source: Source) -> None:
    source.shared.fresh()
    source.now += 4.9
    assert source.shared.latest()
    assert source.asked == 1
    source.now += 0.2
    source.shared.latest()
    wait_until(lambda: source.asked == 2, DEADLINE)


def test_latest_is_never_older_than_the_bound(source: Source) -> None:
    """After a night without viewers, the first one is not told what was true yesterday."""
    source.shared.fresh()
    source.gate.clear()
    source.now += 31.0
    assert source.shared.latest() is None
    source.gate.set()


def test_fresh_begins_after_it_was_asked_for(source: Source) -> None:
    """An answer that was already on its way may be from before the question."""
    source.gate.clear()
    source.shared.latest()
    wait_until(lambda: source.asked == 1, DEADLINE)
    source.now += 1.0
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(source.shared.fresh) for _ in range(2)]
        source.gate.set()
        assert {one.result(DEADLINE).value for one in asked} == {2}
    assert source.asked == 2


def test_fresh_raises_what_went_wrong_and_latest_keeps_the_last_value(source: Source) -> None:
    first = source.shared.fresh()
    source.trouble = OSError("gone")
    source.now += 1.0
    with pytest.raises(OSError, match="gone"):
        source.shared.fresh()
    assert source.shared.latest() is first
