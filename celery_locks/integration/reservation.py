"""Places in the queue, given back by others than the run: a message that will never begin.

The token of a place is made of the task's id, so that a revoke, which knows nothing else, frees it
at once wherever the message is. Everything here is done in the keeper's thread.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable
from typing import Any

from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.forking import run_after_fork
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.store.commands.locks import reservation_token
from celery_locks.text import printable
from celery_locks.types import Holder
from celery_locks.validation import MAX_SECONDS

logger = logging.getLogger("celery_locks")

_PATIENCE = 3600.0
_AGAIN = 1.0
_BATCH = 250
# In a place's ``extra``: the task id of the message that was there before, and for how long it was.
REPLACES = "replaces"


def release_reservation(name: str, token: str, app: Any) -> None:
    """The message with this place will not begin: what it held is free for the next."""
    if token:
        locks = locks_of(app)
        renewer.release_later(
            name, token, locks.background_store, locks.commands, now() + _PATIENCE
        )


def release_reservation_of(request: Any, app: Any) -> None:
    """The same by Celery's request; never raises because of what is in a message."""
    try:
        header = LockHeader.read(request.headers)
    except LockUsageError:
        revoked.add([request.id], app)  # whatever it held, the store knows it by the task's id
    else:
        release_reservation(*header.reservation(request.id), app)


def replaced_by(place: Holder) -> tuple[str, float]:
    """The task id of the message that a place was taken from, and for how long to remember that."""
    task_id, seconds = place.extra.get(REPLACES) or ("", 0.0)
    return str(task_id), min(float(seconds), MAX_SECONDS)


class _Revoked:
    """A chore of the keeper: looks up which locks the revoked ids have, and frees them."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self.due = math.inf
        self._waiting: dict[str, tuple[AppLocks, float]] = {}
        self._is_added = False

    def add(self, ids: Iterable[str], app: Any) -> None:
        try:
            locks = locks_of(app)
        except LockUsageError:
            return  # an app without a lock server has no locks
        tokens = [token for job in ids for token in _tokens_of(job)]
        self._waiting |= dict.fromkeys(tokens, (locks, now() + _PATIENCE))
        self.due = now()
        if not self._is_added:
            self._is_added = True
            renewer.add_job(self)
        renewer.wake_by(self.due)

    def run(self) -> None:
        self.due = math.inf
        waiting = list(self._waiting.items())
        for locks in {id(locks): locks for _, (locks, _) in waiting}.values():
            tokens = [token for token, (its, _) in waiting if its is locks][:_BATCH]
            try:
                self._free_each(tokens, locks)
            except LockUnavailable as error:
                self.due = now() + _AGAIN
                tokens = [token for token in tokens if self._waiting[token][1] < now()]
                if tokens:
                    why = printable(str(error))
                    logger.warning("the places of revoked tasks lapse by themselves: %s", why)
            for token in tokens:
                self._waiting.pop(token, None)
        if self._waiting:
            self.due = min(self.due, now() + _AGAIN / 10)

    def _free_each(self, tokens: list[str], locks: AppLocks) -> None:
        """All in a few calls; one by one if that fails because of one of them."""
        try:
            self._free(tokens, locks)
        except LockUnavailable:
            raise
        except Exception:  # noqa: BLE001
            if len(tokens) == 1:
                renewer.reports.failure("the place of revoked task %r is not freed", tokens[0])
                return
            for token in tokens:
                self._free_each([token], locks)

    def _free(self, tokens: list[str], locks: AppLocks) -> None:
        for root in locks.commands.roots:
            call = locks.commands.locate(root, tokens, renewer.patience())
            for token, (name, _) in locks.background_store.perform(call).items():
                release = locks.commands.release(name, token, budget=renewer.patience())
                locks.background_store.perform(release)


def _tokens_of(job: object) -> list[str]:
    """Those that the messages of a job have; none if this cannot be the id of one."""
    try:
        return [reservation_token(job, again=again) for again in (False, True)]  # type: ignore[arg-type]
    except (TypeError, UnicodeError):
        return []


revoked = _Revoked()
run_after_fork(revoked.after_fork, "integration")


def release_on_revoke(**_: Any) -> None:
    """Have this worker's answer to a revoke free what the messages held, received or not."""
    from celery.worker.control import Panel  # here: a process that only publishes needs no worker

    for command in ("revoke", "terminate"):
        original = Panel.data[command]
        if not hasattr(original, "celery_locks"):
            Panel.data[command] = _freeing(original)


def _freeing(original: Any) -> Any:
    @functools.wraps(original)
    def command(state: Any, *args: Any, task_id: Any = (), **kwargs: Any) -> Any:
        answer = original(state, *args, task_id=task_id, **kwargs)
        revoked.add(task_id if isinstance(task_id, list | tuple | set) else [task_id], state.app)
        return answer

    command.celery_locks = True  # type: ignore[attr-defined]
    return command
