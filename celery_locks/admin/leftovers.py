"""Locks that their holders may have left behind, and freeing those of workers that are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_locks.admin.acts import force_release
from celery_locks.admin.listing import list_locks
from celery_locks.admin.liveness import Liveness, judge
from celery_locks.errors import LockUnavailable
from celery_locks.integration.roll_call import PATIENCE, RollCall, call_the_roll
from celery_locks.locks import Locks
from celery_locks.model import Holder, LockInfo

_SUSPECT = ("absent", "silent", "gone", "late")


@dataclass(frozen=True, slots=True)
class Stale:
    """A holder that an operator should look at, and why."""

    name: str
    liveness: Liveness
    held_for: float
    is_old: bool

    @property
    def holder(self) -> Holder:
        return self.liveness.holder

    @property
    def sentence(self) -> str:
        old = f"It has been held for {self.held_for:.0f} s. " if self.is_old else ""
        return old + self.liveness.sentence

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.liveness.verdict,
            "sentence": self.sentence,
            "held_for": self.held_for,
            "is_old": self.is_old,
            "holder": self.holder.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Swept:
    """Whom the locks were taken from, and those whose worker is silent but may yet renew."""

    freed: tuple[Stale, ...]
    spared: tuple[Stale, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "freed": [one.as_dict() for one in self.freed],
            "spared": [one.as_dict() for one in self.spared],
        }


def stale(
    locks: Locks, app: Any = None, older_than: float | None = None, timeout: float = PATIENCE
) -> list[Stale]:
    """Held by a worker nobody answers for, or that does not run it, or not renewed, or for long.

    Without an app only the renewals are looked at. A worker that does not answer is asked again.
    """
    return _look(locks, app, older_than, timeout)[1]


def _look(
    locks: Locks, app: Any, older_than: float | None, timeout: float
) -> tuple[RollCall | None, list[Stale]]:
    roll = call_the_roll(app, timeout=timeout) if app is not None else None
    found = list(_suspects(locks, roll, older_than))
    silent = {one.holder.worker for one in found if one.liveness.verdict in ("silent", "gone")}
    if roll is None or not silent:
        return roll, found
    again = roll.merged(call_the_roll(app, [name for name in silent if name], timeout))
    return again, [one for old in found if (one := _second_look(locks, old, again, older_than))]


def _suspects(locks: Locks, roll: RollCall | None, older_than: float | None) -> Iterator[Stale]:
    for lock in list_locks(locks):
        for holder in lock.holders:
            if one := _suspect(lock, holder, roll, older_than):
                yield one


def _suspect(
    lock: LockInfo, holder: Holder, roll: RollCall | None, older_than: float | None
) -> Stale | None:
    liveness = judge(holder, lock.as_of, roll)
    held_for = lock.as_of - holder.acquired_at
    is_old = older_than is not None and held_for > older_than
    if liveness.verdict in _SUSPECT or is_old:
        return Stale(lock.name, liveness, held_for, is_old)
    return None


def _second_look(
    locks: Locks, old: Stale, roll: RollCall, older_than: float | None
) -> Stale | None:
    """The same holder as it is now; None if it has given the lock back, or is well."""
    lock = locks.info(old.name)
    for holder in lock.holders if lock else ():
        if lock and holder.token == old.holder.token:
            return _suspect(lock, holder, roll, older_than)
    return None


def sweep(
    locks: Locks,
    app: Any,
    *,
    dry_run: bool = False,
    wait: float = 0.0,
    by: str = "",
    timeout: float = PATIENCE,
) -> Swept:
    """Free the locks of workers that are gone.

    That is: did not answer twice, and a renewal is overdue. ``wait`` so many seconds for the
    latter where only the former is certain. What else a dead worker held lapses by itself.
    """
    ends = time.monotonic() + wait
    while True:
        found = _of_silent_workers(locks, app, timeout)
        gone = [one for one in found if one.liveness.verdict == "gone"]
        spared = [one for one in found if one.liveness.verdict != "gone"]
        if not spared or time.monotonic() >= ends:
            break
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
    if not dry_run:
        gone = [one for one in gone if _free(locks, one, by)]
    return Swept(tuple(gone), tuple(spared))


def _of_silent_workers(locks: Locks, app: Any, timeout: float) -> list[Stale]:
    roll, found = _look(locks, app, None, timeout)
    if roll and roll.trouble:
        raise LockUnavailable(f"nobody knows which workers live: {roll.trouble}")
    return [one for one in found if one.liveness.verdict in ("silent", "gone")]


def _free(locks: Locks, one: Stale, by: str) -> bool:
    reason = f"swept: {one.liveness.sentence}"
    return bool(force_release(locks, one.name, one.holder.token, reason=reason, by=by))
