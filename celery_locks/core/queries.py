"""What can be asked about locks without changing them, written once for sync and async. No I/O."""

from __future__ import annotations

from celery_locks.clock import now
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import Operation
from celery_locks.types import ActiveRun, Holder, LockInfo
from celery_locks.validation import check_name, check_seconds


class Queries:
    """The operations that only read, for ``Locks`` and ``AsyncLocks``."""

    _MAX_RECENT = 10_000

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands
        # For each name the last answer of ``is_locked``, and when the question was sent: it may be
        # as old as that.
        self._recent: dict[str, tuple[float, bool]] = {}

    def info(self, name: str) -> Operation[LockInfo | None]:
        check_name(name)
        info: LockInfo | None = yield self._commands.info(name)
        return info

    def holders(self, name: str) -> Operation[tuple[Holder, ...]]:
        info = yield from self.info(name)
        return info.holders if info else ()

    def is_locked(self, name: str, max_age: float) -> Operation[bool]:
        if max_age:
            check_name(name)
            check_seconds("max_age", max_age)
            at, locked = self._recent.get(name, (-1e18, False))
            if now() - at <= max_age:
                return locked
        read_at = now()
        locked = bool((yield from self.holders(name)))
        if len(self._recent) >= self._MAX_RECENT:
            self._recent = {}
        self._recent[name] = (read_at, locked)
        return locked

    def list_locks(self) -> Operation[list[LockInfo]]:
        """Return every lock that has holders or waiters, each once."""
        found: dict[str, LockInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield from self._commands.page(cursor)
            for info in page.locks:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())

    def active(self, worker: str | None) -> Operation[list[ActiveRun]]:
        infos = yield from self.list_locks()
        runs = [ActiveRun(info.name, holder) for info in infos for holder in info.holders]
        return [run for run in runs if run.is_on(worker)]
