"""What the supervisor knows of one running task, and the lease that it renews for it."""

from __future__ import annotations

import math
from typing import Any

from celery_locks.clock import now
from celery_locks.core.lease import BaseLease, part_token
from celery_locks.integration.app_locks import AppLocks
from celery_locks.integration.visibility_extension import UnackedMessage
from celery_locks.types import Revocation
from celery_locks.validation import MIN_TTL

# A task is first looked up after a third of the shortest ttl that it may have.
FIRST_LOOKUP = MIN_TTL / 3


class SupervisedTask:
    """A task that runs in a child; or in this process, if only its message is supervised."""

    locks: AppLocks
    ttl: float = 0.0  # 0, and no ``locks``, until the options are loaded
    message: UnackedMessage | None = None
    name: str | None = None
    also: tuple[str, ...] = ()  # the further locks that it acquired together
    task: str | None = None
    task_id: str | None = None
    is_dead: bool = False
    is_revoked: bool = False  # found revoked before its name was known; the child is notified
    lookups: int = 0  # how often the store did not know it since it died
    died_at: float = math.inf
    found_pid: int | None = None

    def __init__(self, request: Any, in_child: bool) -> None:
        self.request = request
        self.token: str = request.lock_token
        self.in_child = in_child
        self.due = now() + FIRST_LOOKUP

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The names and tokens of all its locks; none until the name is known."""
        further = [(it, part_token(self.token, n)) for n, it in enumerate(self.also, start=1)]
        return [(self.name, self.token), *further] if self.name else []

    @property
    def pid(self) -> int | None:
        """The pid of its child, if Celery or the store has reported it."""
        pid: int | None = self.request.worker_pid
        return pid or self.found_pid

    def mark_dead(self) -> None:
        if not self.is_dead:
            self.is_dead, self.lookups = True, 0
            self.due = self.died_at = now()

    def postpone(self, until: float) -> None:
        """Look at it again at ``until``; at once if the main thread just marked it dead."""
        self.due = until
        if self.is_dead:
            self.due = self.died_at


class SupervisedLease(BaseLease):
    """A lease that the main process renews for a child.

    If the store no longer has it, the child may just have released it. So no loss is reported
    here: the child is notified, checks, and reports the loss if it is one.
    """

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        if self._mark_lost(reason, revoked) and self._on_lost:
            self._on_lost(self, self.loss(reason))
