"""One list of all locks, read at most so often and shared by everybody who looks.

Reading 100,000 locks takes seconds. A reading begins when somebody asks and the last one began
long enough ago: a second, or five times as long as it took, so that reading takes a fifth of the
time at most. Who asks meanwhile gets the last list, if that is not twice as old as it should be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from celery_locks import admin
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.types import LockInfo

EVERY = 1.0
_TIMES = 5.0
# Long enough for a short list to be read anew; who asks for a long one is not kept waiting.
_PATIENCE = 0.25
# Below this, reading anew costs less than an answer that is out of date.
_CHEAP = 0.05


@dataclass(frozen=True)
class Snapshot:
    """The locks as a reading found them. ``as_of`` is the server's time when it began."""

    locks: tuple[LockInfo, ...]
    as_of: float
    began: float
    read_in: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def every(self) -> float:
        return max(EVERY, _TIMES * self.read_in)

    def with_fixes(self, fixes: dict[str, LockInfo | None]) -> Snapshot:
        """The same, but for some locks that were looked at alone; the later look counts."""
        locks = tuple(_fixed(self.locks, fixes))
        return replace(self, locks=locks, counts=counted(locks))


def _fixed(locks: Iterable[LockInfo], fixes: dict[str, LockInfo | None]) -> Iterator[LockInfo]:
    left = dict(fixes)
    for lock in locks:
        fix = left.pop(lock.name, lock)
        if fix is not None:
            yield max(lock, fix, key=lambda one: one.as_of)
    yield from (fix for fix in left.values() if fix is not None)


def counted(locks: Iterable[LockInfo]) -> dict[str, int]:
    """How many locks are held by somebody at work, waited for, held by a message."""
    counts = {"held": 0, "waiting": 0, "queued": 0}
    for lock in locks:
        counts["held"] += any(not holder.is_queued for holder in lock.holders)
        counts["queued"] += any(holder.is_queued for holder in lock.holders)
        counts["waiting"] += bool(lock.waiters)
    return counts


def server_time(locks: Locks) -> float:
    """The lock server's clock; ours, where it does not tell."""
    server = locks.perform(AdminCommands(locks.commands).server(locks.commands.roots[0]))
    said = server.get("server_time_usec")
    return int(said) / 1e6 if said else time.time()


class SnapshotCache:
    """Safe to share between threads; asking blocks until there is a list.

    ``read`` gives the server's time and all locks, ``look`` one lock by its name.
    """

    def __init__(
        self,
        read: Callable[[], tuple[float, Iterable[LockInfo]]],
        look: Callable[[str], LockInfo | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_all = read
        self._look = look
        self._clock = clock
        self._changed = threading.Condition()
        self._shot: Snapshot | None = None
        self._failed: tuple[float, Exception] | None = None
        self._is_reading = False
        self._fixes: dict[str, tuple[float, LockInfo | None]] = {}

    @classmethod
    def of(cls, locks: Locks) -> SnapshotCache:
        return cls(lambda: (server_time(locks), admin.list_locks(locks)), locks.info)

    def recent(self) -> Snapshot:
        """For lists: the last one, unless it is too old."""
        snapshot, now = self._shot, self._clock()
        every = snapshot.every if snapshot else EVERY
        return self._got(since=now - every, instead=now - 2 * every)

    def exact(self) -> Snapshot:
        """For questions about one task: read now if that costs little, else as ``recent``."""
        snapshot = self._shot
        return self.fresh() if snapshot is None or snapshot.read_in < _CHEAP else self.recent()

    def fresh(self) -> Snapshot:
        """For changes: read now, whatever it costs."""
        now = self._clock()
        return self._got(since=now, instead=now)

    def _got(self, since: float, instead: float) -> Snapshot:
        """A shot begun after ``since``; where that takes long, one begun after ``instead``."""
        hurry = self._clock() + _PATIENCE
        with self._changed:
            while True:
                snapshot, failed, now = self._shot, self._failed, self._clock()
                if snapshot and snapshot.began >= (since if now < hurry else instead):
                    return snapshot
                if failed and failed[0] >= since:
                    raise failed[1].with_traceback(None)
                if not self._is_reading:
                    self._begin()
                self._changed.wait(hurry - now if now < hurry else None)

    def _begin(self) -> None:
        self._is_reading = True
        threading.Thread(target=self._read, name="celery-locks-web-list", daemon=True).start()

    def _read(self) -> None:
        began = self._clock()
        snapshot, failed = None, None
        try:
            as_of, found = self._read_all()
            locks = tuple(found)
            snapshot = Snapshot(locks, as_of, began, self._clock() - began, counted(locks))
        except Exception as error:  # noqa: BLE001 (whoever waits for the list gets it)
            failed = (began, error)
        with self._changed:
            self._is_reading = False
            self._failed = failed
            if snapshot:
                self._fixes = {name: fix for name, fix in self._fixes.items() if fix[0] > began}
                fixes = {name: lock for name, (_, lock) in self._fixes.items()}
                self._shot = snapshot.with_fixes(fixes) if fixes else snapshot
            self._changed.notify_all()

    def look_again(self, names: Iterable[str]) -> None:
        """These were changed just now: show them as they are, without reading all the others.

        What was done is done: if the server does not answer now, the next reading shows it.
        """
        try:
            fixes = {name: self._look(name) for name in names}
        except LockUnavailable:
            return
        with self._changed:
            now = self._clock()
            self._fixes.update({name: (now, lock) for name, lock in fixes.items()})
            if self._shot and fixes:
                self._shot = self._shot.with_fixes(fixes)
