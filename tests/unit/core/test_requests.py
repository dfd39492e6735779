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


@pytest.mark.parametrize("method", ["hold", "acquire", "try_acquire"])
def test_unknown_option_is_refused(method: str) -> None:
    """``on_conflict`` is for the locks of an app; a mistyped ``wait`` would wait for nobody."""
    locks = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    for option in ("on_conflict", "wiat"):
        with pytest.raises(LockUsageError, match=f"no option '{option}'; there are ttl, limit, "):
            with getattr(locks, method)("a", **{option: 5}):
                pass
    assert not locks.is_locked("a")
    locks.close()


def test_unknown_option_of_the_layout_is_refused() -> None:
    """Two processes with different prefixes do not exclude each other."""
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    with pytest.raises(LockUsageError, match="Locks has no option 'prefx'; there are prefix, "):
        Locks(client, prefx="shop")  # type: ignore[call-arg]
