"""The renewer: keeps the leases of this process alive and sends releases that are pending.

A lease is renewed a third of its ttl after its last renewal; the leases of one shard that are due
share one call. A renewal that fails is tried again until the lease's deadline, then the lease is
told that it is lost.

Each server has its own background thread (``background.py``), which renews first, then sends the
pending releases of that server and deletes lapsed names (``cleanup_job.py``). Other jobs run in
further threads. So a slow or frozen server, be it a lock server or the broker, never delays the
renewals on another one.

The renewer holds the leases themselves: a lease that its user forgot lives until it is released.
A renewal never creates a lock (``renew.lua`` changes only what exists). A forked child starts with
an empty renewer: the parent goes on renewing its own leases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from celery_locks.clock import now
from celery_locks.core.background import BackgroundJob, BackgroundThread
from celery_locks.core.cleanup_job import CleanupTargets, ServerCleanup
from celery_locks.core.lease import BaseLease
from celery_locks.core.pending_releases import PendingRelease, PendingReleases, ServerReleases
from celery_locks.core.renewal_job import RenewalEntry, ServerRenewals, shortest_budget
from celery_locks.forking import run_after_fork
from celery_locks.logs import Reports
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import Store
from celery_locks.unpatched import native_rlock, original


class Renewer:
    """Renews the leases it is given; see the module's docstring."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._entries: dict[str, RenewalEntry] = {}
        self._pending_releases = PendingReleases()
        self._cleanup_targets = CleanupTargets()
        self._threads: dict[Hashable, BackgroundThread] = {}
        self._job_threads: dict[Hashable, BackgroundThread] = {}
        self._starting = native_rlock()
        self.reports = Reports()

    def call_on_woke(self, callback: Callable[[], object]) -> None:
        """Call it in a background thread when a release has woken a parked message."""
        self._pending_releases.on_woke = callback

    @property
    def tokens(self) -> frozenset[str]:
        """The tokens of the leases that are renewed now."""
        return frozenset(self._entries)

    def add(
        self, lease: BaseLease, store: Store, commands: LockCommands, due: float | None = None
    ) -> None:
        """Renew ``lease`` from now on, for the first time at ``due``."""
        entry = RenewalEntry(lease, store, commands, due or now() + lease.ttl / 3)
        self._entries[lease.token] = entry
        self._cleanup_targets.add(store, commands)
        self._thread_of(store).wake_by(entry.due)

    def lease_of(self, token: str) -> BaseLease | None:
        entry = self._entries.get(token)
        return entry.lease if entry else None

    def discard(self, token: str) -> None:
        """Stop renewing this lease; a renewal that is under way does no harm."""
        self._entries.pop(token, None)

    def reschedule(self, token: str) -> None:
        """Set the next renewal of a lease that its user renewed, perhaps with another ttl."""
        entry = self._entries.get(token)
        if entry:
            entry.schedule()
            self._thread_of(entry.store).wake_by(entry.due)

    def release_later(self, release: PendingRelease) -> None:
        """Send this release when it is due and the store can be reached."""
        self._pending_releases[release.token] = release
        self._thread_of(release.store).wake_by(release.due)

    def stop_cleanup(self, store: Store) -> None:
        """Delete no lapsed names through this store until it acquires again."""
        self._cleanup_targets.discard(store)

    def wait_idle(self, seconds: float) -> None:
        """Wait until no job is due and no release is pending; for the end of a process."""
        until = now() + seconds
        while self._is_busy() and now() < until:
            original("time", "sleep")(0.005)
        self._pending_releases.log_unreleased()

    def _is_busy(self) -> bool:
        # The jobs first: a job that has just ended may have left a release.
        return self._has_due_jobs() or self._pending_releases.has_unsent

    def _has_due_jobs(self) -> bool:
        return any(
            thread.is_running or any(thread.due_of(job) <= now() for job in thread.jobs)
            for thread in list(self._job_threads.values())
        )

    def add_job(self, job: BackgroundJob, server: Hashable = None) -> None:
        """Run ``job`` in a background thread whenever it is due, until the process ends.

        A job that calls a server names it, so that it shares its thread with no other job.
        """
        self._job_thread(server).add_job(job)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once in the jobs' thread when ``descriptor`` becomes readable."""
        self._job_thread().watch(descriptor, callback)

    def wake_by(self, due: float, server: Hashable = None) -> None:
        """Wake the thread of the jobs if it would sleep past ``due``."""
        self._job_thread(server).wake_by(due)

    def _thread_of(self, store: Store) -> BackgroundThread:
        server = store.server.addresses
        thread = self._threads.get(server)
        return thread or self._make_thread(self._threads, server, self._jobs_for(server))

    def _job_thread(self, server: Hashable = None) -> BackgroundThread:
        thread = self._job_threads.get(server)
        return thread or self._make_thread(self._job_threads, server, [])

    def _make_thread(
        self,
        threads: dict[Hashable, BackgroundThread],
        server: Hashable,
        jobs: list[BackgroundJob],
    ) -> BackgroundThread:
        with self._starting:
            if server not in threads:
                threads[server] = BackgroundThread(jobs, self.reports)
        return threads[server]

    def _jobs_for(self, server: Hashable) -> list[BackgroundJob]:
        """Return the jobs of a server's thread; the renewals come first."""
        renewals = ServerRenewals(server, self._entries, self.reports)
        return [
            renewals,
            ServerReleases(server, self._pending_releases, renewals.patience),
            ServerCleanup(server, self._cleanup_targets, renewals.patience),
        ]

    def patience(self) -> float:
        """Return how long a call of a job may take without losing a lease by waiting for it."""
        return shortest_budget(list(self._entries.values()))


renewer = Renewer()
run_after_fork(renewer.after_fork, "core")
