"""SingleBeat: any number of beat processes, of which one sends the runs of the schedule.

The beats campaign for one lock (``leader.py``). The last run of each entry is on the lock server,
so that the next active beat continues where the last one stopped, from any machine.

Before a run is sent it is *claimed*: in one step the server checks that this beat holds the lock
and replaces the entry's last run, which must be the one that the beat decided by. So each run is
claimed once, whoever is paused, cut off or late:

==============================  ====================================================================
the active beat is paused       its claim is refused, as another holds the lock or has claimed the
past its ttl and continues      run. If it was paused after the claim, it sends this run late, and
                                nobody else does
it dies                         another is active within the ttl. It sends what fell due meanwhile,
                                once for each entry, as beat does after a restart
it dies between claim and send  this run is lost: a run that may have been sent is not sent again
it is told to stop (SIGTERM)    it finishes the send that it has claimed, then releases the lock
the reply to a claim is lost    the claim is repeated with the same record before anything is sent
the lock server is unavailable  no run is claimed, so none is sent, until it replies again. Then
                                what fell due meanwhile is sent, once for each entry
the lock server loses its data  every beat remembers the runs that it last read, and the next active
                                one writes them back
==============================  ====================================================================

Times are those of the beat that sends. Between beats whose clocks differ, the next run after a
takeover is early or late by the difference; it is neither repeated nor left out, because the
schedule computes it from the last run.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple, Self

from celery.beat import ScheduleEntry, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.time import maybe_make_aware

from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.errors import LeaseLost, LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.leader import Leader
from celery_locks.logs import Reports
from celery_locks.store.commands.beat import CLAIMED, NOT_HOLDER, BeatCommands, Runs

logger = logging.getLogger("celery_locks")

# Seconds between two looks of a beat that is not active, and until a failed claim is tried again.
_LOOK_EVERY = 0.2
# Records of entries that are no longer in the schedule are deleted after this time, in seconds.
# Not at once: schedulers leave entries out for hours, and a release may be rolled back.
_FORGET_AFTER = 7 * 86400.0


class _DeferredSignals:
    """Defers SIGTERM and SIGINT: the first of each is handled when ``end`` is called.

    Celery's handlers raise ``SystemExit`` wherever they are called. A second signal is handled at
    once, so a broker that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._received: list[int] = []

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread has handlers, and may change them
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if number not in self._handlers and handler not in (None, signal.SIG_IGN):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, _: Any) -> None:
        self._received.append(number)
        signal.signal(number, self._handlers.pop(number))

    def end(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        while self._received:
            signal.raise_signal(self._received.pop())


class _NotClaimed(Exception):
    """The run is not ours to send: the lock or the last run has changed."""


class Run(NamedTuple):
    """The last run of an entry, or when it was first seen; see ``share_runs.lua``."""

    at: float
    total: int
    fence: int = 0

    @classmethod
    def parse(cls, record: str) -> Run:
        micros, total, fence = map(int, record.split())
        return cls(micros / 1e6, total, fence)

    def record(self) -> str:
        return f"{round(self.at * 1e6)} {self.total} {self.fence}"


class MemoryScheduler(Scheduler):  # type: ignore[misc]
    """Celery's default scheduler without its file: the last runs are on the lock server."""

    def setup_schedule(self) -> None:
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)


class SingleBeat(Scheduler):  # type: ignore[misc]
    """Runs the scheduler of ``locks_beat_scheduler`` in one beat process at a time."""

    def __new__(cls, app: Any, *args: Any, **options: Any) -> Self:
        """Make an object of a class that inherits from this one and from the scheduler."""
        scheduler = _scheduler_class(locks_of(app).settings.beat_scheduler)
        made: type[Self] = cls
        if not issubclass(cls, scheduler):
            made = type(cls.__name__, (cls, scheduler), {"__module__": cls.__module__})
        return object.__new__(made)

    def __init__(self, app: Any, *args: Any, **options: Any) -> None:
        self._locks = locks_of(app)
        values = self._locks.settings
        name = values.beat_name or f"beat:{app.main or 'celery'}"
        self._leader = Leader(app, name, ttl=values.beat_ttl, role="celery beat")
        self._commands = BeatCommands(self._locks.commands)
        self._reports = Reports()
        self._deferred_signals = _DeferredSignals()
        # The lease under which the heap was filled; another one reads the runs again.
        self._lease: Lease | None = None
        self._records: dict[str, str] = {}
        self._next_read = 0.0
        # Claims without a reply, by entry: the record that they replace, and their own.
        self._unanswered: dict[str, tuple[str, str]] = {}
        super().__init__(app, *args, **options)

    def tick(self, *args: Any, **options: Any) -> float:
        """Send the next due run if this is the active beat; return the seconds until the next look.

        An error of the lock server does not end beat: what is due stays due.
        """
        self._leader.start()
        lease = self._leader.lease
        try:
            if lease is None:
                return self._stand_by()
            if lease is not self._lease:
                self._heap, self._lease = None, lease
            self.producer  # noqa: B018 (connect to the broker first, which may take long)
            return float(super().tick(*args, **options))
        except (_NotClaimed, LeaseLost):
            self._lease = None
        except LockUnavailable as error:
            self._lease = None
            self._reports.warning("beat sends nothing while its lock server is away: %s", error)
        finally:
            self._deferred_signals.end()
        return _LOOK_EVERY

    def _stand_by(self) -> float:
        """Read the runs from time to time, in case the lock server loses them."""
        if now() >= self._next_read:
            self._next_read = now() + self._locks.settings.beat_ttl / 3
            self._remember(self._locks.perform(self._commands.share_runs(self._leader.name)))
        return _LOOK_EVERY

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Read the last runs of all beats first: the heap is computed from them."""
        self._share_runs()
        super().populate_heap(*args, **options)

    def reserve(self, entry: ScheduleEntry) -> ScheduleEntry:
        """Claim this run; the wrapped scheduler records it only if the claim succeeded."""
        self._deferred_signals.begin()  # until the end of the tick, which sends it
        self._claim(entry)
        return super().reserve(entry)

    def close(self) -> None:
        """Let another beat take over at once; a signal handler may call this, and Celery again."""
        try:
            super().close()
        finally:
            self._leader.stop()

    @property
    def info(self) -> str:
        """The lines of beat's banner."""
        values = self._locks.settings
        lock = f"    . lock -> {self._leader.name!r}, ttl {values.beat_ttl:g} s"
        wrapped = f"    . schedule -> {_scheduler_class(values.beat_scheduler).__name__}"
        return "\n".join(line for line in (lock, wrapped, super().info) if line)

    def _share_runs(self) -> None:
        """Take over the runs of other beats, and write those that the server does not have."""
        lease, entries = self._held_lease(), dict(self.schedule)
        self._adopt(entries)
        missing = {name: _run_of(entry).record() for name, entry in entries.items()}
        forget_before = round((time.time() - _FORGET_AFTER) * 1e6)
        call = self._commands.share_runs(self._leader.name, lease.token, missing, forget_before)
        runs = self._locks.perform(call)
        if not runs.is_holder:
            self._refused(lease)
        self._remember(runs)
        self._adopt(entries)

    def _remember(self, runs: Runs) -> None:
        if runs.records:  # else the server has lost its data, or there never was a beat
            self._records = runs.records
        for name, (before, record) in list(self._unanswered.items()):
            current = self._records.get(name, "")
            if current == record:
                self._records[name] = before  # claimed, and not sent: it is still due
            elif current != before:
                del self._unanswered[name]

    def _adopt(self, entries: Mapping[str, Any]) -> None:
        """Set the last runs of the entries to those on the server that are later."""
        for name, entry in entries.items():
            if record := self._records.get(name):
                run, own = Run.parse(record), _run_of(entry)
                if run.at > own.at or _is_new(entry):
                    _set_run(entry, run, self.app.timezone)

    def _claim(self, entry: Any) -> None:
        lease, name = self._held_lease(), entry.name
        run = Run(time.time(), entry.total_run_count + 1, lease.fence)
        claim = self._unanswered.get(name, (self._records.get(name, ""), run.record()))
        self._unanswered[name] = claim
        reply = self._locks.perform(
            self._commands.claim_run(self._leader.name, lease.token, name, *claim)
        )
        del self._unanswered[name]
        if reply != CLAIMED:
            logger.warning(
                "beat does not send %r: it was paused or cut off, and another beat is active", name
            )
            if reply == NOT_HOLDER:
                self._refused(lease)
            raise _NotClaimed
        self._records[name] = claim[1]

    def _held_lease(self) -> Lease:
        lease = self._leader.lease
        if lease is None:
            raise _NotClaimed
        return lease

    def _refused(self, lease: Lease) -> None:
        """Find out what became of the lock: renew it if nobody took it, else lose it."""
        with suppress(LeaseLost):
            lease.renew()
        raise _NotClaimed


def _scheduler_class(name: str | None) -> type[Any]:
    if name is None:
        return MemoryScheduler
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    found: type[Any] = symbol_by_name(name, aliases=aliases)
    if issubclass(found, SingleBeat):
        raise LockUsageError(
            f"locks_beat_scheduler is {name!r}; write the scheduler that SingleBeat is to run"
        )
    return found


def _run_of(entry: Any) -> Run:
    return Run(maybe_make_aware(entry.last_run_at).timestamp(), entry.total_run_count)


def _is_new(entry: Any) -> bool:
    """Return True if its last run is only the time at which this process started.

    An entry of django-celery-beat has a ``model``, and its time comes from the database.
    """
    return not entry.total_run_count and not hasattr(entry, "model")


def _set_run(entry: Any, run: Run, timezone: tzinfo) -> None:
    """Set the last run of an entry, in the time zone that the schedule computes with."""
    at = datetime.fromtimestamp(run.at, timezone)
    if entry.last_run_at.tzinfo is None:
        at = at.astimezone(UTC).replace(tzinfo=None)  # what Celery takes a naive time for
    for record in (entry, getattr(entry, "model", None)):
        if record is not None:
            record.last_run_at, record.total_run_count = at, run.total
