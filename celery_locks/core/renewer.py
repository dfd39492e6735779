"""The thread that keeps leases alive.

One native thread per process, started with the first lease. It sleeps until a lease is due (a
third of its ttl after the last renewal) and renews everything that is due in one call per shard.
What fails is tried again until the lease's own deadline, then the lease is told that it is lost.
What could not be given back, it goes on trying to (``debts.py``).

Everything it does is isolated: a lease, debt, chore or descriptor that fails in an unforeseen way
costs itself only, and the log has it once a minute.

It holds the leases themselves, so a lease that its user forgot about lives until it is released.
A renewal can never make a lock anew (``renew.lua`` changes only what is there). A forked child
starts with an empty keeper: the parent goes on renewing its own.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from celery_locks.clock import now
from celery_locks.core.lease import NOT_ON_SERVER, BaseLease
from celery_locks.core.pending_releases import PendingRelease, PendingReleases, group_by_shard
from celery_locks.errors import LockUnavailable
from celery_locks.logs import Reports
from celery_locks.store.commands.locks import (
    CALL_LIMIT,
    RENEW_BATCH,
    LockCommands,
    Lost,
    Mark,
    Renewal,
    budget_of,
)
from celery_locks.store.effects import Store
from celery_locks.unpatched import native_lock, original, start_thread

logger = logging.getLogger("celery_locks")

# A lease that would be due within this part of its interval is renewed along with the others.
_COALESCE = 0.25
# The longest sleep while anything is held: poll's clock stands still while the machine sleeps.
_MAX_SLEEP = 1.0
# After something failed in an unforeseen way: the thread itself, and a chore.
_PAUSE = 0.02
_REST = 0.25


@dataclass(slots=True)
class RenewalEntry:
    """A lease in the keeper's care, the store it lives in, and when it is due."""

    lease: BaseLease
    store: Store
    commands: LockCommands
    due: float
    failed: bool = False

    @property
    def name(self) -> str:
        return self.lease.name

    def schedule(self, again: bool = False) -> None:
        """A third of the ttl from now; at once if the ttl was changed while we renewed."""
        self.failed = False
        self.due = now() + (0.0 if again else self.lease.ttl / 3)

    def schedule_retry(self) -> None:
        """After a failure: soon, and at the deadline at the latest."""
        self.failed = True
        gap = max(0.05, self.lease.ttl / 20)
        self.due = min(now() + gap, max(self.lease.deadline, now() + 0.01))


class BackgroundJob(Protocol):
    """Something else to do in this thread when it is due: the worker's side has one."""

    @property
    def due(self) -> float: ...
    def run(self) -> None: ...


class Renewer:
    """Renews what it is given; see the module's docstring."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._entries: dict[str, RenewalEntry] = {}
        self._pending_releases = PendingReleases()
        self._jobs: list[BackgroundJob] = []
        self._rests: dict[int, float] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self.reports = Reports()
        self._starting = native_lock()
        self._wakeup_pipe: tuple[int, int] | None = None
        self._wakes_at = -math.inf

    @property
    def tokens(self) -> frozenset[str]:
        """The leases in its care at this moment."""
        return frozenset(self._entries)

    def add(
        self, lease: BaseLease, store: Store, commands: LockCommands, due: float | None = None
    ) -> None:
        """Renew ``lease`` from now on, for the first time at ``due``."""
        entry = RenewalEntry(lease, store, commands, due or now() + lease.ttl / 3)
        self._entries[lease.token] = entry
        self.wake_by(entry.due)

    def lease_of(self, token: str) -> BaseLease | None:
        entry = self._entries.get(token)
        return entry.lease if entry else None

    def discard(self, token: str) -> None:
        """Renew it no more; a renewal on its way does no harm."""
        self._entries.pop(token, None)

    def reschedule(self, token: str) -> None:
        """The lease was renewed by hand, perhaps with another ttl."""
        entry = self._entries.get(token)
        if entry:
            entry.schedule()
            self.wake_by(entry.due)

    def release_later(
        self,
        name: str,
        token: str,
        store: Store,
        commands: LockCommands,
        until: float,
        repeat_until_expired: bool = False,
        keep: float = 0.0,
        keep_as: str = "",
        marks: Sequence[Mark] = (),
        past: str | None = None,
    ) -> None:
        """Release this token as soon as the store can be reached, if that is before ``until``.

        The rest as in the verb; with ``keep`` the slot stays taken for so long from now.
        """
        self._pending_releases[token] = PendingRelease(
            name,
            token,
            store,
            commands,
            until,
            repeat_until_expired,
            now() + keep,
            keep_as,
            marks,
            past,
        )
        self.wake_by(now())

    def wait_idle(self, seconds: float) -> None:
        """Wait until nothing is due and every debt is paid, for so long; at a process's end."""
        until = now() + seconds
        while self._wakeup_pipe and self._is_busy() and now() < until:
            original("time", "sleep")(0.005)
        self._pending_releases.log_unreleased()

    def _is_busy(self) -> bool:
        return self._pending_releases.unpaid or any(
            self._due_of(job) <= now() for job in self._jobs
        )

    def add_job(self, job: BackgroundJob) -> None:
        """Run ``chore`` in the keeper's thread whenever it is due, until the process ends."""
        self._jobs.append(job)
        self.wake_by(job.due)

    def watch(self, descriptor: int, then: Callable[[], None]) -> None:
        """Call ``then`` once in the keeper's thread when ``descriptor`` becomes readable."""
        self._watched[descriptor] = then
        self.wake_by(-math.inf)

    def wake_by(self, due: float) -> None:
        """Ring only if the thread would sleep too long; acquire and release usually never ring."""
        if self._wakeup_pipe is None:
            with self._starting:
                if self._wakeup_pipe is None:
                    self._start()
        elif due < self._wakes_at or due == -math.inf:
            with suppress(BlockingIOError):  # a full pipe rings too
                self._ring(self._wakeup_pipe[1], b"!")

    def _start(self) -> None:
        # eventlet's own write would switch to its hub, and refuses two that ring at once.
        self._ring = original("os", "write")
        self._wakeup_pipe = os.pipe()
        os.set_blocking(self._wakeup_pipe[0], False)
        os.set_blocking(self._wakeup_pipe[1], False)
        try:
            start_thread(self._run, self._wakeup_pipe[0])
        except BaseException:
            # No thread, no bell: else everybody after us would believe that it runs.
            for end in self._wakeup_pipe:
                os.close(end)
            self._wakeup_pipe = None
            raise

    def _run(self, pipe: int) -> None:
        while True:
            went_well = [
                self._try("its sleep", partial(self._sleep, pipe)),
                self._try(
                    "what is to be given back", partial(self._pending_releases.flush, self.patience)
                ),
                self._try("its chores", self._run_jobs),
                self._try("the renewals", self._renew_due),
            ]
            if not all(went_well):
                original("time", "sleep")(_PAUSE)

    def _try(self, what: str, step: Callable[[], None]) -> bool:
        """Nothing may end this thread: who would notice that nothing is renewed?"""
        try:
            step()
        except BaseException:  # noqa: BLE001
            self.reports.failure(f"the lock keeper failed at {what} and goes on")
            return False
        return True

    def _sleep(self, pipe: int) -> None:
        poll = original("select", "poll")()
        watched = dict(self._watched)
        for descriptor in (pipe, *watched):
            poll.register(descriptor, original("select", "POLLIN"))
        self._wakes_at = self._first_due()
        # Looked at twice: a lease that came in between saw the thread awake and did not ring.
        seconds = min(self._wakes_at, self._first_due()) - now()
        ready = poll.poll(
            None if seconds == math.inf else max(0.0, min(seconds, _MAX_SLEEP)) * 1000
        )
        self._wakes_at = -math.inf
        for descriptor, _ in ready:
            if descriptor == pipe:
                original("os", "read")(pipe, 4096)
            elif self._watched.pop(descriptor, None):
                self._try("a watched descriptor", watched[descriptor])

    def _run_jobs(self) -> None:
        for job in self._jobs:
            if self._due_of(job) > now():
                continue
            # Not at the price of the renewals, which come next, nor of the processor.
            if not self._try("a chore", job.run):
                self._rests[id(job)] = now() + _REST

    def _due_of(self, job: BackgroundJob) -> float:
        """One that failed rests a little first."""
        return max(job.due, self._rests.get(id(job), -math.inf))

    def _first_due(self) -> float:
        dues = [entry.due for entry in list(self._entries.values())]
        dues += [self._due_of(job) for job in self._jobs]
        return min(*dues, self._pending_releases.due, math.inf)

    def patience(self, calls: int = 1) -> float:
        """So short that even if every call of this round times out, no lease misses its renewal."""
        shortest = min((c.lease.ttl for c in list(self._entries.values())), default=CALL_LIMIT)
        return max(0.05, budget_of(shortest) / max(1, calls))

    def _renew_due(self) -> None:
        self._drop_ended()
        entries = list(self._entries.values())
        moment = now()
        if not any(entry.due <= moment for entry in entries):
            return
        due = [c for c in entries if c.due - c.lease.ttl / 3 * _COALESCE <= moment]
        rounds = _batches(due, self._drop)
        # What failed last time comes last. What answers leaves its time to the rest, so a slow but
        # living server has more of it than an equal share.
        rounds.sort(key=lambda batch: any(entry.failed for entry in batch))
        ends = moment + self.patience()
        for still, batch in zip(reversed(range(len(rounds))), rounds, strict=True):
            left = ends - now()
            self._renew(batch, max(0.05, left / 2 if still else left))

    def _drop_ended(self) -> None:
        """``check`` found it past its deadline: renewed, it would stay taken with nobody in it."""
        for token, entry in list(self._entries.items()):
            if entry.lease.has_ended:
                self.discard(token)

    def _renew(self, batch: list[RenewalEntry], budget: float) -> None:
        first = batch[0]
        sent_at = now()
        # At the deadline the holder must hear of it, so the call may not outlast it.
        in_time = max(0.05, min(budget, min(c.lease.deadline for c in batch) - sent_at))
        renewals = [Renewal(c.lease.name, c.lease.token, c.lease.ttl) for c in batch]
        try:
            lost = first.store.perform(first.commands.renew(renewals, in_time))
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, LockUnavailable):
                self.reports.failure("renewing %d locks failed in an unforeseen way", len(batch))
                if len(batch) > 1:  # perhaps because of one of them
                    for entry in batch:
                        self._renew([entry], budget / len(batch))
                    return
            for entry in batch:
                self._try("a lease", partial(self._failed, entry, error))
            return
        for entry, renewal in zip(batch, renewals, strict=True):
            self._try("a lease", partial(self._answered, entry, renewal, lost, sent_at))

    def _answered(self, entry: RenewalEntry, renewal: Renewal, lost: Lost, sent_at: float) -> None:
        if renewal.token in lost:
            self.discard(renewal.token)
            entry.lease.lose(NOT_ON_SERVER, lost.revoked.get(renewal.token))
            return
        entry.schedule(again=renewal.ttl != entry.lease.ttl)
        entry.lease.mark_renewed(sent_at, renewal.ttl)
        if renewal.token in lost.stops:
            entry.lease.request_stop()

    def _drop(self, entry: RenewalEntry) -> None:
        self.reports.failure("lock %r cannot be renewed: no call can be made of it", entry.name)
        self.discard(entry.lease.token)
        entry.lease.lose("it cannot be renewed")

    def _failed(self, entry: RenewalEntry, error: Exception) -> None:
        if now() >= entry.lease.deadline:
            self.discard(entry.lease.token)
            entry.lease.lose(f"it could not be renewed in time: {error}")
        else:
            entry.lease.suspend(error)
            entry.schedule_retry()


def _batches(
    entries: list[RenewalEntry], drop: Callable[[RenewalEntry], None]
) -> list[list[RenewalEntry]]:
    """What goes into one call each: one place, not too many."""
    return [
        group[start : start + RENEW_BATCH]
        for group in group_by_shard(entries, drop)
        for start in range(0, len(group), RENEW_BATCH)
    ]


renewer = Renewer()
os.register_at_fork(after_in_child=renewer.after_fork)
