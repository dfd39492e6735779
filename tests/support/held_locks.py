"""Locks that are held on a store without a process that renews them, as by one that is gone."""

from typing import Any

from celery_locks import Locks
from celery_locks.types import Holder, LockSpec


def take(locks: Locks, name: str, token: str = "", **fields: Any) -> Any:
    """Acquire or, with ``alive``, wait in line; the fields are those of the holder."""
    spec = LockSpec(name, fields.pop("ttl", 60.0), fields.pop("limit", 1))
    alive = fields.pop("alive", 0)
    call = locks.commands.acquire(spec, token or f"token of {name}", Holder(**fields), alive=alive)
    return locks.perform(call)


def held_for(locks: Locks, clock: Any, *seconds: float, task: str = "bill") -> None:
    """Past holds of a task, one after the other."""
    for number, one in enumerate(seconds):
        take(locks, f"past {number}", task=task, task_id="p", ttl=100_000)
        clock.shift(one)
        token = f"token of past {number}"
        locks.perform(locks.commands.release(f"past {number}", token, history_note=""))
