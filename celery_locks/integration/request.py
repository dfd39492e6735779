"""The request in the worker's main process: creates the token and reports to the supervisor.

The token travels to a child in ``properties`` and tells it that its lock is renewed here. At the
top level of the request it would become a message header, which retries inherit. Celery makes a
subclass of this class for every task and redefines two of its methods there without calling ours,
so these are wrapped when the subclass is made.
"""

from __future__ import annotations

import functools
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from celery_locks.core.requests import new_token
from celery_locks.integration.headers import give_token, remove_token
from celery_locks.integration.internals import (
    context_of,
    error_of,
    has_children,
    request_dict_of,
)
from celery_locks.integration.reservation import Reservation
from celery_locks.integration.supervisor import supervisor


class LockRequest(Request):  # type: ignore[misc]
    """A request whose task may hold a lock."""

    lock_token = ""
    superseded_by = ""
    """The task that takes the place of this run, which is terminated (``displacement.py``)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in vars(cls):
            cls.execute_using_pool = _wrap_execute_using_pool(cls.execute_using_pool)
        if "on_success" in vars(cls):
            cls.on_success = _wrap_on_success(cls.on_success)

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self.worker_pid = pid
        supervisor.on_accepted(self.lock_token, pid)
        return super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle the loss of a child; errors that a child itself reports go to ``on_success``.

        Celery reports a terminated or timed out child before it is dead: it may still write.
        """
        error = error_of(exc_info)
        is_early = isinstance(error, Terminated | TimeLimitExceeded)
        if isinstance(error, WorkerLostError) or (is_early and not supervisor.sees_deaths):
            supervisor.on_child_lost(self.lock_token)
        comes_again = self.task.acks_late and self.task.reject_on_worker_lost
        if not comes_again and isinstance(error, WorkerLostError | Terminated | TimeLimitExceeded):
            # It may have died before it acquired its lock, so that the reservation remains.
            Reservation.of(context_of(self), self.task.app).release()
        return super().on_failure(exc_info, *args, **kwargs)

    def _announce_revoked(self, reason: str, *args: Any) -> None:
        """Say in the result which task supersedes this one.

        Private in Celery, verified on 5.3 and 5.7; ``test_internals.py`` fails if it changes.
        """
        if self.superseded_by:
            reason = f"superseded by {self.superseded_by}"
        super()._announce_revoked(reason, *args)


def _wrap_execute_using_pool(original: Any) -> Any:
    @functools.wraps(original)
    def execute_using_pool(self: LockRequest, pool: Any, **kwargs: Any) -> Any:
        token = self.lock_token = new_token()
        in_child = has_children(pool)
        if in_child:
            give_token(request_dict_of(self), token)
        else:
            remove_token(request_dict_of(self))
        # Before the child can have it: a busy main process may not get "accepted" in time.
        supervisor.add(self, in_child=in_child)
        try:
            return original(self, pool, **kwargs)
        except BaseException:
            supervisor.remove(self.lock_token)
            raise

    return execute_using_pool


def _wrap_on_success(original: Any) -> Any:
    @functools.wraps(original)
    def on_success(self: LockRequest, *args: Any, **kwargs: Any) -> Any:
        supervisor.remove(self.lock_token)
        return original(self, *args, **kwargs)

    return on_success
