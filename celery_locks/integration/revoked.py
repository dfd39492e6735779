"""Release the reservations of revoked tasks, wherever their messages are.

A revoke knows only task ids, and the tokens of reservations are made of these. A background job
looks up which locks the tokens have and releases them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.forking import run_after_fork
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.displacement import SUPERSEDED_BY
from celery_locks.integration.internals import wrap_command
from celery_locks.printable_text import printable
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.parking import ParkCommands
from celery_locks.types import PARKED_PREFIX

RETRY_FOR = 3600.0
_RETRY_AFTER = 1.0
_BATCH = 250


class RevokedTasks:
    """A background job that releases the reservations of revoked task ids."""

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
        tokens = [token for task_id in ids for token in _tokens_of(task_id)]
        self._waiting |= dict.fromkeys(tokens, (locks, now() + RETRY_FOR))
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
                self._release_each(tokens, locks)
            except LockUnavailable as error:
                self.due = now() + _RETRY_AFTER
                tokens = [token for token in tokens if self._waiting[token][1] < now()]
                if tokens:
                    why = printable(str(error))
                    renewer.reports.warning(
                        "the reservations of revoked tasks are not released, they lapse: %s", why
                    )
            for token in tokens:
                self._waiting.pop(token, None)
        if self._waiting:
            self.due = min(self.due, now() + _RETRY_AFTER / 10)

    def _release_each(self, tokens: list[str], locks: AppLocks) -> None:
        """Release all in a few calls; one by one if one of them fails."""
        try:
            self._release(tokens, locks)
        except LockUnavailable:
            raise
        except Exception:  # noqa: BLE001
            if len(tokens) == 1:
                renewer.reports.failure(
                    "the reservation of revoked task %r is not released", tokens[0]
                )
                return
            for token in tokens:
                self._release_each([token], locks)

    def _release(self, tokens: list[str], locks: AppLocks) -> None:
        for root in locks.commands.roots:
            call = locks.commands.locate(root, tokens, renewer.patience())
            perform = locks.operations.background_store.perform
            for token, (name, holder) in perform(call).items():
                if token.startswith(PARKED_PREFIX) and not holder.fence:
                    # It waits: publish it now, so that a worker discards it as Celery does.
                    perform(ParkCommands(locks.commands).unpark(name, token, publish=True))
                else:
                    perform(locks.commands.release(name, token, budget=renewer.patience()))


def _tokens_of(task_id: object) -> list[str]:
    """Return the tokens that a task's messages may have; none if it cannot be a task id."""
    try:
        kinds: tuple[dict[str, bool], ...] = (
            *({}, {"again": True}, {"requeued": True}),
            {"parked": True},
        )
        return [reservation_token(task_id, **kind) for kind in kinds]  # type: ignore[arg-type]
    except (TypeError, UnicodeError):
        return []


revoked = RevokedTasks()
run_after_fork(revoked.after_fork, "integration")


def release_on_revoke(**_: Any) -> None:
    """Make this worker release the reservations of revoked messages, received or not."""
    for name in ("revoke", "terminate"):
        wrap_command(name, _wrap_revoke)


def _wrap_revoke(original: Any) -> Any:
    def command(state: Any, *args: Any, task_id: Any = (), **kwargs: Any) -> Any:
        ids = task_id if isinstance(task_id, list | tuple | set) else [task_id]
        superseded_by = kwargs.pop(SUPERSEDED_BY, None)
        if superseded_by:
            task_id = _note_superseding(ids, superseded_by)
        answer = original(state, *args, task_id=task_id, **kwargs)
        revoked.add(ids, state.app)
        return answer

    return command


def _note_superseding(ids: Iterable[Any], superseded_by: str) -> list[Any]:
    """Note in the requests of this worker which task takes their place; return their ids.

    Redelivered copies of the others are discarded here. Celery's command would also mark their
    results as revoked, before the workers that run them say by which task they are superseded.
    """
    from celery.worker import state  # a publisher does not need it

    state.revoked.update(ids)
    found = [task_id for task_id in ids if task_id in state.requests]
    for task_id in found:
        state.requests[task_id].superseded_by = superseded_by
    return found
