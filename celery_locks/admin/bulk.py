"""Release many locks at once, from the holders that an operator saw and from nobody else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_locks.admin.actions import find_holders, force_release, stop
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.types import Holder

_POLL = 0.5


class Target(NamedTuple):
    """One holder of one lock."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class BulkRelease:
    """The result for each target.

    ``released`` were taken from their holders. ``not_held`` no longer had the lock: it was released
    before, or during the grace. If the server stops answering, ``trouble`` says so and it is not
    known whether the ``unknown`` targets were released.
    """

    released: tuple[tuple[str, Holder], ...] = ()
    not_held: tuple[Target, ...] = ()
    unknown: tuple[Target, ...] = ()
    trouble: str = ""


def force_release_many(
    locks: Locks, targets: Sequence[Target], *, reason: str, by: str = "", grace: float = 0.0
) -> BulkRelease:
    """Call ``force_release`` for each target; all of them have the same grace at the same time."""
    targets = tuple(dict.fromkeys(targets))
    if grace > 0:
        try:
            _stop_and_wait(locks, targets, reason, by, grace)
        except LockUnavailable as error:
            return BulkRelease(unknown=targets, trouble=str(error))
    released: list[tuple[str, Holder]] = []
    not_held: list[Target] = []
    for done, target in enumerate(targets):
        try:
            taken = force_release(locks, target.name, target.token, reason=reason, by=by, grace=0.0)
        except LockUnavailable as error:
            return BulkRelease(tuple(released), tuple(not_held), targets[done:], str(error))
        released.extend((target.name, holder) for holder in taken)
        if not taken:
            not_held.append(target)
    return BulkRelease(tuple(released), tuple(not_held))


def _stop_and_wait(
    locks: Locks, targets: Sequence[Target], reason: str, by: str, grace: float
) -> None:
    """Ask all of them to stop, and wait until none holds its lock or the grace is over."""
    ends = time.monotonic() + grace
    left = [t for t in targets if stop(locks, t.name, t.token, reason=reason, by=by)]
    while left and time.monotonic() < ends:
        time.sleep(min(_POLL, max(0.0, ends - time.monotonic())))
        left = [target for target in left if find_holders(locks, target.name, target.token)]
