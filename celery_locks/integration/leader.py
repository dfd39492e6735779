"""Leader election: a lock that one process of many holds for as long as it lives.

A candidate waits in line for the lock in a thread of its own and is the leader while its lease is
valid. The renewer renews the lease, so a leader whose main thread is busy stays the leader, and one
that is paused past the ttl is not the leader from its first instruction on: ``is_leader`` compares
the lease's deadline with the clock.

The pool children of a worker are forked before or after the election; they read the deadline and
the fence from memory that they share with the worker's main process, which campaigns.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_locks.clock import now
from celery_locks.core.lease import Lease, State
from celery_locks.core.requests import AcquireOptions, new_token
from celery_locks.errors import LockError, LockUnavailable, LockUsageError
from celery_locks.holder import Holder, this_process
from celery_locks.integration.app_locks import locks_of
from celery_locks.logs import Reports
from celery_locks.store.effects import Effect, WaitForHandover, run_sync
from celery_locks.types import Conflict
from celery_locks.validation import check_name, check_not_reserved, check_ttl

logger = logging.getLogger("celery_locks")

ElectedCallback = Callable[[Lease], object]
LostCallback = Callable[[Lease, LockError], object]

# Seconds between two looks at the lease, and the pause before the next campaign.
_LOOK_EVERY = 0.1
_PAUSE = 1.0
# A candidate leaves the line within REPOLL (``waiting.py``) after it is told to stop.
_STOP_WITHIN = 2.0


class _Stopped(Exception):
    """Raised in a candidate that waits in line when it is told to stop."""


class _Term:
    """The deadline and the fence of the leader, in memory that forked children share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)
        self.pid = os.getpid()

    def set(self, deadline: float, fence: int) -> None:
        # The fence first: who sees the deadline of a term sees its fence, or a later one.
        struct.pack_into("q", self._memory, 8, fence)
        struct.pack_into("d", self._memory, 0, deadline)

    @property
    def deadline(self) -> float:
        return float(struct.unpack_from("d", self._memory, 0)[0])

    @property
    def fence(self) -> int:
        return int(struct.unpack_from("q", self._memory, 8)[0])


class Leader:
    """A candidate for the lock ``name``, and the leader while it holds it; see ``leader``."""

    def __init__(
        self,
        app: Any,
        name: str,
        on_elected: ElectedCallback | None = None,
        on_lost: LostCallback | None = None,
        ttl: float | None = None,
        role: str = "leader",
    ) -> None:
        check_name(name)
        check_not_reserved(name)
        if ttl is not None:
            check_ttl(ttl)
        for option, callback in (("on_elected", on_elected), ("on_lost", on_lost)):
            if callback is not None and not callable(callback):
                raise LockUsageError(f"{option} is {callback!r}; write a function")
        self.app = app
        self.name = name
        self._on_elected = on_elected
        self._on_lost = on_lost
        self.ttl = ttl
        self._role = role
        self._term = _Term()
        self._lease: Lease | None = None
        self._campaign: _Campaign | None = None
        self._reports = Reports()

    def __repr__(self) -> str:
        return f"<Leader {self.name!r} {'is leader' if self.is_leader else 'is not leader'}>"

    @property
    def lease(self) -> Lease | None:
        """The lease, in the process that campaigns; None if it is not the leader."""
        lease = self._lease
        if not lease or lease.is_foreign():
            return None
        return lease if lease.state in (State.HELD, State.SUSPENDED) else None

    @property
    def is_leader(self) -> bool:
        """True while this worker or process is the leader; also in a worker's pool. No I/O."""
        if self._lease and not self._lease.is_foreign():
            return self.lease is not None
        return now() < self._term.deadline

    @property
    def fence(self) -> int:
        """The number of this term, above those of all earlier leaders; 0 if not the leader."""
        return self._term.fence if self.is_leader else 0

    def start(self) -> None:
        """Campaign in the background until ``stop``; a second call does nothing."""
        if self._campaign and self._campaign.pid == os.getpid():
            return
        locks = locks_of(self.app)  # raises here if there is no lock server in the settings
        if self._term.pid != os.getpid():
            self._term = _Term()  # a forked child that campaigns is a candidate of its own
        self._lease = None
        self._campaign = _Campaign(self, locks)
        self._campaign.thread.start()

    def stop(self) -> None:
        """Stop the campaign and release the lock, so that another takes over at once."""
        campaign, self._campaign = self._campaign, None
        if campaign and campaign.pid == os.getpid():
            campaign.stopping.set()
            if self._lease:
                self._end_term(self._lease)
            if campaign.thread is not threading.current_thread():
                campaign.thread.join(_STOP_WITHIN)

    def holder(self) -> Holder:
        return this_process()._replace(task=self._role)

    # The methods below are for the campaign.

    def lead(self, lease: Lease, stopping: threading.Event) -> None:
        """Be the leader until the lease ends, an operator asks to stop, or ``stopping`` is set."""
        self._term.set(lease.deadline, lease.fence)
        self._lease = lease
        try:
            if self._announce(lease):
                while not stopping.wait(_LOOK_EVERY):
                    lease.check()
                    self._term.set(lease.deadline, lease.fence)
        except LockError as error:
            self._lose(lease, error)
        finally:
            self._end_term(lease)

    def _announce(self, lease: Lease) -> bool:
        """Call ``on_elected``; return False if it failed: another may be able to lead."""
        try:
            if self._on_elected:
                self._on_elected(lease)
        except Exception:  # noqa: BLE001 (it is the code of the user)
            self._reports.failure("on_elected of leader %r failed: it steps down", self.name)
            return False
        logger.info("this process is the leader %r now, with fence %d", self.name, lease.fence)
        return True

    def _lose(self, lease: Lease, error: LockError) -> None:
        """Tell the user before the lock is released."""
        self._forget_term()
        logger.info("this process is no longer the leader %r: %s", self.name, error)
        if self._on_lost:
            try:
                self._on_lost(lease, error)
            except Exception:
                logger.exception("on_lost of leader %r failed", self.name)

    def _forget_term(self) -> None:
        self._lease = None
        self._term.set(0.0, 0)

    def _end_term(self, lease: Lease) -> None:
        self._forget_term()
        with suppress(LockUnavailable):  # the renewer tries again
            lease.release()


class _Campaign:
    """The thread of a candidate; each ``start`` has its own."""

    def __init__(self, leader: Leader, locks: Any) -> None:
        self.pid = os.getpid()
        self.stopping = threading.Event()
        self._leader = leader
        self._locks = locks
        self._ttl: float = locks.ttl if leader.ttl is None else leader.ttl
        self._reports = Reports()
        name = f"celery-locks-leader-{leader.name}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        while not self.stopping.is_set():
            pause = _PAUSE
            try:
                lease = self._acquire()
                self._leader.lead(lease, self.stopping)
            except _Stopped:
                return
            except LockUnavailable:
                pause = self._ttl / 3  # each try leaves a line in the log
            except Exception:  # noqa: BLE001 (the campaign must not end unnoticed)
                self._reports.failure("the campaign for leader %r failed", self._leader.name)
            self.stopping.wait(pause)

    def _acquire(self) -> Lease:
        """Wait in line for the lock until ``stopping`` is set."""
        leader, locks = self._leader, self._locks
        options: AcquireOptions = {"wait": "forever", "holder": leader.holder()}
        operation = locks.operations.acquire_by_name(leader.name, new_token(), self._ttl, options)
        answer: Lease | Conflict = run_sync(operation, self._perform)
        assert isinstance(answer, Lease)  # a wait without an end has no conflict
        return answer

    def _perform(self, effect: Effect) -> Any:
        if self.stopping.is_set() and isinstance(effect, WaitForHandover):
            raise _Stopped
        return self._locks.perform(effect)


_leaders: list[Leader] = []


def leader(
    app: Any,
    name: str,
    on_elected: ElectedCallback | None = None,
    on_lost: LostCallback | None = None,
    ttl: float | None = None,
) -> Leader:
    """Have every worker of the app campaign for the lock ``name``; one at a time is the leader.

        primary = leader(app, "primary", on_lost=stop_scheduler)

        @app.task
        def collect():
            if primary.is_leader: ...

    A worker campaigns from the moment that it is ready until it has shut down. After a clean
    shutdown another takes over at once; after kill -9, or a pause longer than the ttl, within
    ``ttl`` seconds. Other processes call ``start()`` and ``stop()``.

    ``on_elected``: called with the lease when this process becomes the leader; if it raises, the
    process steps down. ``on_lost``: called with the lease and the error when it is no longer the
    leader although nobody called ``stop()``: the lease is lost, or an operator asked for it. Both
    are called in the thread of the campaign and must return soon. ``ttl``: by default that of the
    app's locks.
    """
    from celery_locks.integration.signals import install

    candidate = Leader(app, name, on_elected, on_lost, ttl)
    _leaders.append(candidate)
    install()
    return candidate


def start_leaders(sender: Any = None, **_: Any) -> None:
    """Start the candidates of a worker that is ready; ``sender`` is its consumer."""
    for candidate in _leaders:
        if candidate.app == sender.app:
            candidate.start()


def stop_leaders(sender: Any = None, **_: Any) -> None:
    """Stop the candidates of a worker that has shut down; ``sender`` is the worker."""
    for candidate in _leaders:
        if candidate.app == sender.app:
            candidate.stop()
