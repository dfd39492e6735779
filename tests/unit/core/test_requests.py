"""What callers ask for: the options of an acquire."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import fakeredis
import pytest

from celery_locks import Locks, LockUsageError


def test_wait_forever_is_a_word_of_every_acquire() -> None:
    locks = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    with locks.hold("forever", wait="forever"):
        assert locks.acquire("forever", wait=None) is None
        with ThreadPoolExecutor(1) as other:  # a thread that waits for its own lock is told so
            assert other.submit(locks.acquire, "forever", wait=0.01).result() is None
    with pytest.raises(LockUsageError, match=r"wait must be .* or 'forever', not 'never'"):
        locks.acquire("forever", wait="never")  # type: ignore[typeddict-item]
    locks.close()
