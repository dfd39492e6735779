"""The request as the worker's main process has it: mints the token and reports to the wards.

The token travels to a child in ``properties``, and tells it that its lock is kept here. At the top
level of the request it would become a message header, which retries inherit. Celery makes a
subclass of this class for every task and redefines two of its methods there without calling ours,
so those are wrapped as they are made.
"""

from __future__ import annotations

import functools
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from celery_locks.core.requests import new_token
from celery_locks.integration.headers import give_token, remove_token
from celery_locks.integration.reservation import release_reservation_of
from celery_locks.integration.supervisor import supervisor


class LockRequest(Request):  # type: ignore[misc]
    """A request whose task may hold a lock."""

    lock_token = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in vars(cls):
            cls.execute_using_pool = _dispatching(cls.execute_using_pool)
        if "on_success" in vars(cls):
            cls.on_success = _ending(cls.on_success)

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self.worker_pid = pid
        supervisor.accepted(self.lock_token, pid)
        return super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """What a child reports comes by way of ``on_success``; the rest is said about a child.

        That it was terminated or ran out of time is said before it is gone: it may write still.
        """
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        said_too_early = isinstance(error, Terminated | TimeLimitExceeded)
        if isinstance(error, WorkerLostError) or (said_too_early and not supervisor.sees_deaths):
            supervisor.died(self.lock_token)
        comes_again = self.task.acks_late and self.task.reject_on_worker_lost
        if not comes_again and isinstance(error, WorkerLostError | Terminated | TimeLimitExceeded):
            # It may have died before it asked for its lock, which then is still the message's.
            release_reservation_of(self._context, self.task.app)
        return super().on_failure(exc_info, *args, **kwargs)


def _dispatching(original: Any) -> Any:
    @functools.wraps(original)
    def execute_using_pool(self: LockRequest, pool: Any, **kwargs: Any) -> Any:
        token = self.lock_token = new_token()
        has_children = _has_children(type(pool).__module__)
        if has_children:
            give_token(self._request_dict, token)
        else:
            remove_token(self._request_dict)
        # Before the child can have it: while the main process is busy it may not hear "accepted".
        supervisor.add(self, children=has_children)
        try:
            return original(self, pool, **kwargs)
        except BaseException:
            supervisor.ended(self.lock_token)
            raise

    return execute_using_pool


@functools.cache
def _has_children(pool: str) -> bool:
    return pool.endswith("prefork")


def _ending(original: Any) -> Any:
    @functools.wraps(original)
    def on_success(self: LockRequest, *args: Any, **kwargs: Any) -> Any:
        supervisor.ended(self.lock_token)
        return original(self, *args, **kwargs)

    return on_success
