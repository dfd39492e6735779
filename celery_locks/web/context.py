"""What the handlers work with: the locks, the Celery app, and what all viewers share.

``snapshot.py`` shares the list of locks. What the workers report is shared too: asking them costs
a broadcast over the broker and up to three seconds, so they are asked every few seconds while
somebody looks, however many look, and each answer states its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from celery_locks import admin, settings
from celery_locks.admin.connect import ActiveReport, Locks, location, open_locks, server_time
from celery_locks.types import Holder, LockInfo
from celery_locks.web.cache import Loaded, SharedCache
from celery_locks.web.snapshot import Snapshot, SnapshotCache

_REPORT_INTERVAL = 5.0
_REPORT_MAX_AGE = 30.0
_DURATIONS_INTERVAL = 10.0
_DURATIONS_MAX_AGE = 600.0


class WorkerReports:
    """The reports of the workers that hold a lock: which tasks they run."""

    def __init__(self, locks: Locks, app: Any, snapshot: SnapshotCache) -> None:
        self._locks = locks
        self._app = app
        self._snapshot = snapshot
        self._arguments = settings.of(app).show_arguments
        self._cache = SharedCache(self._ask, _REPORT_INTERVAL, _REPORT_MAX_AGE)

    def _ask(self) -> ActiveReport:
        found, at = self._snapshot.recent().locks, server_time(self._locks)
        report = admin.ask_workers(self._app, found, arguments=self._arguments)
        return replace(admin.ask_again(self._app, report, arguments=self._arguments), at=at)

    def latest(self) -> Loaded[ActiveReport] | None:
        """Return the last report without waiting; None until there is one."""
        return self._cache.latest()

    def about(self, lock: LockInfo) -> Loaded[ActiveReport]:
        """Return the last report if it covers this lock's workers; else ask them and wait."""
        latest, names = self.latest(), {holder.worker for holder in lock.holders if holder.worker}
        is_covered = latest and (latest.value.queried is None or names <= latest.value.queried)
        return latest if latest and is_covered else self._cache.fresh()

    def as_dict(self, loaded: Loaded[ActiveReport] | None) -> dict[str, Any]:
        """Return how many workers were asked and answered, how long ago, or why none was."""
        report = loaded.value if loaded else ActiveReport()
        return {
            "asked": len(report.queried or ()),
            "answered": len(report.running),
            "age": self._cache.age(loaded) if loaded else None,
            "trouble": report.trouble,
        }


class WebContext:
    """The locks and the caches. ``app`` is a Celery app, or None: then no worker can be asked."""

    def __init__(self, locks: Locks, app: Any, snapshot: SnapshotCache) -> None:
        self.locks = locks
        self.app = app
        self.snapshot = snapshot
        self.workers = WorkerReports(locks, app, snapshot) if app is not None else None
        self._durations = SharedCache(
            lambda: admin.usual(locks), _DURATIONS_INTERVAL, _DURATIONS_MAX_AGE
        )
        self._suspects: tuple[Snapshot, ActiveReport | None, frozenset[str]] | None = None

    @classmethod
    def of(cls, source: Any) -> WebContext:
        """Build the context for a Celery app or ``Locks``."""
        locks, app = open_locks(source)
        return cls(locks, app, SnapshotCache.of(locks))

    def location(self) -> dict[str, Any]:
        """Return which locks these are, so that nobody takes production for staging."""
        return {"app_name": getattr(self.app, "main", None), **asdict(location(self.locks))}

    def suspects(self, snapshot: Snapshot, report: ActiveReport | None) -> frozenset[str]:
        """Return the names of the locks whose holder may be dead; computed once per list."""
        known = self._suspects
        if known and known[0] is snapshot and known[1] is report:
            return known[2]
        found = frozenset(
            lock.name
            for lock in snapshot.locks
            if any(
                admin.verdict_of(holder, lock.as_of, report) in admin.SUSPECT
                for holder in lock.holders
            )
        )
        self._suspects = (snapshot, report, found)
        return found

    def usual_durations(self) -> Mapping[str, admin.Usual]:
        """Return for each task how long it usually holds its lock."""
        return (self._durations.latest() or self._durations.fresh()).value

    def lock_row(
        self, lock: LockInfo, report: ActiveReport | None, durations: Mapping[str, admin.Usual]
    ) -> dict[str, Any]:
        """Return a lock as a row of the list: with its usual duration and each holder's verdict."""
        tasks = (holder.task or "" for holder in lock.holders if admin.is_at_work(holder))
        usual = next((durations[task] for task in tasks if task in durations), None)
        row = lock.as_dict()
        row["usual"] = usual.as_dict() if usual else None
        for holder_row, holder in zip(row["holders"], lock.holders, strict=True):
            holder_row["liveness"] = admin.judge(holder, lock.as_of, report).as_dict()
        return row


def arguments_of(holder: Holder, report: ActiveReport | None) -> dict[str, str] | None:
    """Return a running task's arguments, if the app shows them and its worker reported them."""
    found = report.arguments.get(holder.task_id or "") if report else None
    return found._asdict() if found else None
