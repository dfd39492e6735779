"""One list of all locks, shared by all viewers, however many there are.

Reading 100,000 locks takes seconds. A reading starts when a caller comes and the last one began
long enough ago: a second, or five times its duration, so that reading takes at most a fifth of the
time. Meanwhile callers get the last list, unless it is more than twice as old as it should be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from celery_locks import admin
from celery_locks.admin.connect import Locks, server_time
from celery_locks.errors import LockUnavailable
from celery_locks.types import LockInfo

_INTERVAL = 1.0
_INTERVAL_FACTOR = 5.0  # reading takes at most a fifth of the time
# Long enough to read a short list again; callers do not wait for a long one.
_MAX_WAIT = 0.25
# Below this, reading again costs less than an answer that is out of date.
_CHEAP = 0.05


@dataclass(frozen=True)
class Snapshot:
    """All locks, as one reading found them. ``as_of`` is the server's time when it began."""

    locks: tuple[LockInfo, ...]
    as_of: float
    began: float
    read_in: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def interval(self) -> float:
        """Seconds from the start of this reading to the start of the next."""
        return max(_INTERVAL, _INTERVAL_FACTOR * self.read_in)

    def with_updates(self, updates: dict[str, LockInfo | None]) -> Snapshot:
        """Return it with some locks that were read alone; of two readings the later counts."""
        locks = tuple(_update(self.locks, updates))
        return replace(self, locks=locks, counts=count_states(locks))


def _update(locks: Iterable[LockInfo], updates: dict[str, LockInfo | None]) -> Iterator[LockInfo]:
    left = dict(updates)
    for lock in locks:
        update = left.pop(lock.name, lock)
        if update is not None:
            yield max(lock, update, key=lambda reading: reading.as_of)
    yield from (lock for lock in left.values() if lock is not None)


def count_states(locks: Iterable[LockInfo]) -> dict[str, int]:
    """Count the locks in each state; a lock may be in several."""
    counts = {"held": 0, "waiting": 0, "queued": 0, "paused": 0, "parked": 0}
    for lock in locks:
        counts["held"] += any(not holder.is_queued for holder in lock.holders)
        counts["queued"] += any(holder.is_queued for holder in lock.holders)
        counts["waiting"] += bool(lock.waiters)
        counts["paused"] += lock.pause is not None
        counts["parked"] += lock.parked > 0
    return counts


class SnapshotCache:
    """The last snapshot, safe to share between threads; callers wait until there is one.

    ``read`` returns the server's time and all locks, ``read_one`` one lock by its name.
    """

    def __init__(
        self,
        read: Callable[[], tuple[float, Iterable[LockInfo]]],
        read_one: Callable[[str], LockInfo | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_all = read
        self._read_one = read_one
        self._clock = clock
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._failed: tuple[float, Exception] | None = None
        self._is_reading = False
        self._updates: dict[str, tuple[float, LockInfo | None]] = {}

    @classmethod
    def of(cls, locks: Locks) -> SnapshotCache:
        return cls(lambda: (server_time(locks), admin.list_locks(locks)), locks.info)

    def recent(self) -> Snapshot:
        """Return the last snapshot unless it is too old; for lists."""
        snapshot, now = self._snapshot, self._clock()
        interval = snapshot.interval if snapshot else _INTERVAL
        return self._wait_for(since=now - interval, fallback=now - 2 * interval)

    def exact(self) -> Snapshot:
        """Read now if that is cheap, else as ``recent``; for queries about one task."""
        snapshot = self._snapshot
        return self.fresh() if snapshot is None or snapshot.read_in < _CHEAP else self.recent()

    def fresh(self) -> Snapshot:
        """Read now, whatever it costs; for changes."""
        now = self._clock()
        return self._wait_for(since=now, fallback=now)

    def _wait_for(self, since: float, fallback: float) -> Snapshot:
        """Return a snapshot begun after ``since``, or, if that takes long, after ``fallback``."""
        wait_until = self._clock() + _MAX_WAIT
        with self._changed:
            while True:
                snapshot, failed, now = self._snapshot, self._failed, self._clock()
                if snapshot and snapshot.began >= (since if now < wait_until else fallback):
                    return snapshot
                if failed and failed[0] >= since:
                    raise failed[1].with_traceback(None)
                if not self._is_reading:
                    self._start()
                self._changed.wait(wait_until - now if now < wait_until else None)

    def _start(self) -> None:
        self._is_reading = True
        threading.Thread(target=self._read, name="celery-locks-web-list", daemon=True).start()

    def _read(self) -> None:
        began = self._clock()
        snapshot, failed = None, None
        try:
            as_of, found = self._read_all()
            locks = tuple(found)
            snapshot = Snapshot(locks, as_of, began, self._clock() - began, count_states(locks))
        except Exception as error:  # noqa: BLE001 (raised to the callers that wait for the list)
            failed = (began, error)
        with self._changed:
            self._is_reading = False
            self._failed = failed
            if snapshot:
                # A reading that began before a change must not undo it.
                self._updates = {
                    name: update for name, update in self._updates.items() if update[0] > began
                }
                updates = {name: lock for name, (_, lock) in self._updates.items()}
                self._snapshot = snapshot.with_updates(updates) if updates else snapshot
            self._changed.notify_all()

    def reload(self, names: Iterable[str]) -> None:
        """Show these locks, which were just changed, as they are now; the others are not read.

        The change is made already: if the server does not answer now, the next reading shows it.
        """
        try:
            updates = {name: self._read_one(name) for name in names}
        except LockUnavailable:
            return
        with self._changed:
            now = self._clock()
            self._updates.update({name: (now, lock) for name, lock in updates.items()})
            if self._snapshot and updates:
                self._snapshot = self._snapshot.with_updates(updates)
