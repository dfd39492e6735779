"""Deadlocks as an operator sees them."""

from typing import Any

from celery_locks import Locks, admin
from celery_locks.types import Holder, LockSpec


def put(locks: Locks, name: str, token: str, owner: str, *, waits: bool = False) -> None:
    holder = Holder(host="h", pid=7, owner=owner)
    how: dict[str, Any] = {"alive": 60, "owners": [owner]} if waits else {}
    locks.perform(locks.commands.acquire(LockSpec(name, 60.0), token, holder, **how))


def describe_entry(locks: Locks, name: str) -> str:
    return "\n".join(admin.why(locks, name).sentences)


def test_why_tells_of_a_deadlock(locks: Locks) -> None:
    """As long as nobody has given way: a reader sees the ring, whichever lock he asks about."""
    put(locks, "a", "t1", "me")
    put(locks, "b", "t2", "you")
    assert "waits for lock" not in describe_entry(locks, "a")
    put(locks, "b", "w1", "me", waits=True)
    assert "Its holder, a process on h, pid 7, waits for lock 'b', held by" in describe_entry(
        locks, "a"
    )
    assert "Deadlock" not in describe_entry(locks, "a")
    put(locks, "a", "w2", "you", waits=True)
    for name, other in ("ab", "ba"):
        assert (
            f"Deadlock: a process on h, pid 7 holds lock {name!r} and waits for lock {other!r}; "
            in (describe_entry(locks, name))
        )


def test_why_tells_of_one_who_waits_for_himself(locks: Locks) -> None:
    put(locks, "a", "t1", "me")
    put(locks, "a", "w1", "me", waits=True)
    assert "waits for lock 'a', which it holds itself" in describe_entry(locks, "a")
