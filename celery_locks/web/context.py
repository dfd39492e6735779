"""What the answers come from: the locks, the app, and what all who look share.

The list is shared by ``snapshot.py``. So is what the workers answer: to ask them costs a broadcast
over the broker and up to three seconds, so they are asked every few seconds while somebody looks,
however many look, and each answer says how old it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_locks import admin, settings
from celery_locks.core.locks import Locks
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.types import Holder, LockInfo
from celery_locks.web.shared import Got, Shared
from celery_locks.web.snapshot import Snapshot, SnapshotCache, server_time

ASK_WORKERS = 5.0
_OLDEST_ANSWER = 30.0
READ_USUAL = 10.0
_OLDEST_USUAL = 600.0


class Workers:
    """Asks those that hold a lock what they run."""

    def __init__(self, locks: Locks, app: Any, snapshot: SnapshotCache) -> None:
        self._locks = locks
        self._app = app
        self._snapshot = snapshot
        self._arguments = settings.of(app).show_arguments
        self._shared = Shared(self._ask, ASK_WORKERS, _OLDEST_ANSWER)

    def _ask(self) -> ActiveReport:
        found, at = self._snapshot.recent().locks, server_time(self._locks)
        roll = admin.ask_workers(self._app, found, arguments=self._arguments)
        return replace(admin.ask_again(self._app, roll, arguments=self._arguments), at=at)

    def latest(self) -> Got[ActiveReport] | None:
        """What they last answered; at once, so at first nothing."""
        return self._shared.latest()

    def about(self, lock: LockInfo) -> Got[ActiveReport]:
        """The last answer, if this lock's workers were asked; else they are, and waited for."""
        latest, names = self.latest(), {one.worker for one in lock.holders if one.worker}
        is_asked = latest and (latest.value.queried is None or names <= latest.value.queried)
        return latest if latest and is_asked else self._shared.fresh()

    def as_dict(self, got: Got[ActiveReport] | None) -> dict[str, Any]:
        """For people: how many were asked and answered, how long ago, or why nobody was."""
        roll = got.value if got else ActiveReport()
        return {
            "asked": len(roll.queried or ()),
            "answered": len(roll.running),
            "age": self._shared.age(got) if got else None,
            "trouble": roll.trouble,
        }


class WebContext:
    """``app`` is a Celery app, or None; then no worker can be asked."""

    def __init__(self, locks: Locks, app: Any, snapshot: SnapshotCache) -> None:
        self.locks = locks
        self.app = app
        self.snapshot = snapshot
        self.workers = Workers(locks, app, snapshot) if app is not None else None
        self._usual = Shared(lambda: admin.usual(locks), READ_USUAL, _OLDEST_USUAL)
        self._suspects: tuple[Snapshot, ActiveReport | None, frozenset[str]] | None = None

    @classmethod
    def of(cls, locks: Locks, app: Any = None) -> WebContext:
        return cls(locks, app, SnapshotCache.of(locks))

    def where(self) -> dict[str, Any]:
        """Which locks these are: nobody should mistake production for staging."""
        server, db = self.locks.server
        name = getattr(self.app, "main", None)
        prefix = self.locks.commands.prefix
        return {"app_name": name, "server": server, "db": db, "prefix": prefix}

    def suspects(self, snapshot: Snapshot, roll: ActiveReport | None) -> frozenset[str]:
        """The names of the locks whose holder may be dead; counted once for each list."""
        known = self._suspects
        if known and known[0] is snapshot and known[1] is roll:
            return known[2]
        found = frozenset(
            lock.name
            for lock in snapshot.locks
            if any(admin.verdict_of(one, lock.as_of, roll) in admin.SUSPECT for one in lock.holders)
        )
        self._suspects = (snapshot, roll, found)
        return found

    def usual(self) -> Mapping[str, admin.Usual]:
        """Task → how long it usually has its lock."""
        return (self._usual.latest() or self._usual.fresh()).value

    def listed(
        self, lock: LockInfo, roll: ActiveReport | None, usual: Mapping[str, admin.Usual]
    ) -> dict[str, Any]:
        """A lock as a row: with the usual duration, and a verdict on each holder."""
        tasks = (one.task or "" for one in lock.holders if admin.is_at_work(one))
        known = next((usual[task] for task in tasks if task in usual), None)
        said = lock.as_dict()
        said["usual"] = known.as_dict() if known else None
        for row, holder in zip(said["holders"], lock.holders, strict=True):
            row["liveness"] = admin.judge(holder, lock.as_of, roll).as_dict()
        return said


def arguments_of(holder: Holder, roll: ActiveReport | None) -> dict[str, str] | None:
    """A running task's arguments, if the app lets them be shown and its worker told them."""
    found = roll.arguments.get(holder.task_id or "") if roll else None
    return found._asdict() if found else None
