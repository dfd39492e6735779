"""What operators do to a lock: release it by force, or ask its holder to stop."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Locks, LockUsageError, admin
from celery_locks.admin import actions as acts
from celery_locks.types import LockInfo
from tests.support.held_locks import take


def test_find_holders_tells_whether_a_token_still_holds_the_lock(locks: Locks) -> None:
    """What an operator saw a moment ago may be over, and another may have the lock."""
    take(locks, "a", "t1", limit=2, task_id="t")
    take(locks, "a", "t2", limit=2, task_id="u")
    assert {holder.token for holder in admin.find_holders(locks, "a")} == {"t1", "t2"}
    assert [holder.task_id for holder in admin.find_holders(locks, "a", "t2")] == ["u"]
    admin.force_release(locks, "a", "t2")
    assert admin.find_holders(locks, "a", "t2") == ()
    assert admin.find_holders(locks, "free") == ()


def test_force_release_signs_with_the_user(locks: Locks) -> None:
    take(locks, "a")
    admin.force_release(locks, "a")
    assert admin.history(locks)[0].by == admin.current_operator()
    with pytest.raises(LockUsageError):
        admin.force_release(locks, "")


@pytest.mark.parametrize("act", [admin.force_release, admin.stop])
def test_reason_is_bounded_and_checked(locks: Locks, act: Any) -> None:
    """What goes into the history must come out of it again, quickly and by any reader."""
    take(locks, "a")
    for wrong in ("\ud800", b"bytes", 5, None):
        with pytest.raises(LockUsageError, match="reason"):
            act(locks, "a", reason=wrong)
        assert admin.history(locks) == []
        assert locks.holders("a")
    act(locks, "a", reason="é" * 2_000_000, by="x" * 2_000_000)
    [entry] = admin.history(locks)
    assert (entry.why, entry.by) == ("é" * 500, "x" * 500)


def test_default_grace_is_of_those_at_work(locks: Locks) -> None:
    """A third of the ttl until the holder learns of it, and five seconds to end."""
    take(locks, "a", "t1", limit=3, ttl=31)
    take(locks, "a", "t2", limit=3, ttl=60)
    take(locks, "a", "q3", limit=3, ttl=3600)
    take(locks, "queued", retries=-1, ttl=3600)
    graces = {lock.name: lock.default_grace for lock in admin.list_locks(locks)}
    assert graces == {"a": 25, "queued": 0}
    assert LockInfo("free", 1, ()).default_grace == 0


def test_force_release_without_a_number_waits_as_long_as_the_holder_needs(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds were over before a holder with the usual ttl of 30 s had heard of it."""
    take(locks, "a", ttl=30)
    waited: list[float] = []
    monkeypatch.setattr(acts, "_wait_for_release", lambda *args: waited.append(args[-1]) or [])
    admin.force_release(locks, "a", grace=None)
    admin.force_release(locks, "free", grace=None)
    assert waited == [15]
    for wrong in (-1, float("nan"), "5"):
        with pytest.raises(LockUsageError, match="grace"):
            admin.force_release(locks, "a", grace=wrong)  # type: ignore[arg-type]
    assert locks.holders("a")
