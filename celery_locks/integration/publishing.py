"""Locks from publish time: ``scope="queued"`` and ``"queued+running"``.

The publisher takes a lock for the message and nobody renews it: it lives until the message begins
to run, or for ``pending_ttl`` beyond its due time if it never does. The name and token travel in
the message's header.

- ``queued``: a lock of its own beside the one of the run. The call that acquires the running lock
  gives it back, so a run costs no more than without it.
- ``queued+running``: the running lock itself. Its first holder is the message (attempt 0), and the
  run takes it over as it would from an earlier attempt.

In a canvas the ids are frozen and others wait for them: there a duplicate is published all the
same, and the run decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from celery.utils import uuid
from celery.utils.time import maybe_make_aware

from celery_locks import events, policy
from celery_locks.clock import now
from celery_locks.errors import AlreadyQueued, LockUnavailable
from celery_locks.integration.app import locks_of
from celery_locks.integration.header import HEADER
from celery_locks.integration.naming import lock_name
from celery_locks.keeper import keeper
from celery_locks.lease import Lease
from celery_locks.model import Conflict, Holder, LockSpec, this_process
from celery_locks.options import LockOptions
from celery_locks.store.verbs import QUEUED

logger = logging.getLogger("celery_locks")

_FROZEN = ("task_id", "chain", "chord", "group_id")
Send = Callable[[dict[str, Any]], Any]


def publish(
    task: Any, lock: LockOptions, args: Any, kwargs: Any, options: dict[str, Any], send: Send
) -> Any:
    """``send(options)``, under the lock of the queue where the task has one."""
    note = dict((options.get("headers") or {}).get(HEADER) or {})
    is_new = not options.get("retries") and "since" not in note
    if not lock.enabled or lock.scope == "running" or not is_new or task.app.conf.task_always_eager:
        return send(options)
    return _Publication(task, lock, args or (), kwargs or {}, options, send).run()


class _Publication:
    """One call on its way into the queue."""

    def __init__(
        self,
        task: Any,
        lock: LockOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: dict[str, Any],
        send: Send,
    ) -> None:
        self.task = task
        self.lock = lock
        self.locks = locks_of(task.app)
        self.id_is_frozen = any(options.get(word) for word in _FROZEN)
        self.options = {**options, "task_id": options.get("task_id") or uuid()}
        self.send = send
        self.name = queue_name(task, lock, args, kwargs)
        if lock.debounce and not options.get("countdown") and not options.get("eta"):
            self.options["countdown"] = lock.debounce

    def run(self) -> Any:
        if self.name is None:
            return self.send(self.options)
        try:
            answer = self._acquire()
            if isinstance(answer, Conflict):
                return self._duplicate(answer)
        except LockUnavailable as error:
            return self._unavailable(error)
        return self._sent(answer)

    def _acquire(self, replaces: bool = False) -> Lease | Conflict:
        assert self.name is not None
        process = this_process()
        holder = Holder(
            task_id=self.options["task_id"],
            task=self.task.name,
            retries=-1,  # attempt 0: nobody has begun it
            host=process.host,
            pid=process.pid,
        )
        spec = LockSpec(self.name, self.lock.pending_ttl + self._delay(), self.lock.limit)
        answer = self.locks.acquire_for_task(
            spec, holder, Lease, kept_elsewhere=True, replaces=replaces
        )
        assert isinstance(answer, Lease | Conflict)
        return answer

    def _delay(self) -> float:
        """Seconds until the message is due."""
        eta = self.options.get("eta")
        if eta:
            aware = maybe_make_aware(eta, self.task.app.timezone)
            return max(0.0, float((aware - datetime.now(UTC)).total_seconds()))
        return max(0.0, float(self.options.get("countdown") or 0))

    def _duplicate(self, conflict: Conflict) -> Any:
        decision = policy.on_duplicate(conflict, self.lock, id_is_frozen=self.id_is_frozen)
        events.emit("duplicate", conflict.name, conflict=conflict, decision=decision)
        if decision == "replace":
            return self._replace(conflict)
        if decision == "raise":
            raise AlreadyQueued(conflict)
        if decision == "return_existing":
            result = self.task.AsyncResult(conflict.holders[0].task_id)
            result.deduplicated = True
            return result
        return self._plainly()

    def _replace(self, conflict: Conflict) -> Any:
        """The new message goes in; the one it replaces is told revoked and will not run."""
        former = conflict.holders[0]
        if self.lock.debounce:
            self.options["countdown"] = max(0.0, self.lock.debounce - conflict.age)
        answer = self._acquire(replaces=True)
        if isinstance(answer, Conflict):
            return self._plainly()  # it has begun to run: what comes now is the run's to decide
        if former.retries < 0 and not self.task.ignore_result:
            self.task.backend.mark_as_revoked(former.task_id, "replaced", store_result=True)
        return self._sent(answer)

    def _unavailable(self, error: LockUnavailable) -> Any:
        """A message is not lost because the lock server is away: the run has its own say."""
        if self.lock.on_unavailable == "fail":
            raise error
        logger.warning("task %s is published unlocked: %s", self.task.name, error)
        events.emit("unlocked", self.name or "", task=self.task.name, why=str(error))
        return self._plainly()

    def _plainly(self) -> Any:
        result = self.send(self.options)
        result.deduplicated = False
        return result

    def _sent(self, lease: Lease) -> Any:
        headers = dict(self.options.get("headers") or {})
        note = {**headers.get(HEADER, {}), "queued": [lease.name, lease.token]}
        self.options["headers"] = {**headers, HEADER: note}
        try:
            return self._plainly()
        except BaseException:
            # Not in the queue, as far as anybody knows.
            self._give_back(lease)
            raise

    def _give_back(self, lease: Lease) -> None:
        try:
            lease.release()
        except LockUnavailable as error:
            logger.warning("lock %r is given back as soon as possible: %s", lease.name, error)


def queue_name(
    task: Any, lock: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """The name of the lock that a message holds while it is queued; None for locks by task id."""
    if lock.key is None:
        return None
    name = lock_name(task, lock, args, kwargs)
    return name + QUEUED if name and lock.scope == "queued" else name


def pending(
    task: Any, lock: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Literal["queued", "running"] | None:
    """Whether such a call is queued or runs at this moment."""
    locks = locks_of(task.app)
    name = lock_name(task, lock, args, kwargs)
    if name is None:
        return None
    running = locks.holders(name)
    if any(holder.retries >= 0 for holder in running):
        return "running"
    is_queued = running or (lock.scope == "queued" and locks.holders(name + QUEUED))
    return "queued" if is_queued else None


def free_revoked(request: Any, app: Any) -> None:
    """A message was revoked or expired before it began: what it held is free for the next."""
    note = (request.headers or {}).get(HEADER) or {}
    name, token = note.get("queued") or ("", "")
    if token:
        locks = locks_of(app)
        keeper.give_back(name, token, locks.keeper_store, locks.verbs, now() + 60.0)
