"""Locks from publish time: ``scope="queued"`` and ``"queued+running"``.

The publisher acquires a reservation for the message, which nobody renews. It lives until the
message begins to run; if it never does, until the message expires or for ``pending_ttl`` beyond its
due time. The name travels in the message's header; the token is made of the task's id
(``reservation.py``).

- ``queued``: the reservation is a lock of its own beside the one of the run. The call that acquires
  the running lock releases it, so a run costs no more than without it.
- ``queued+running``: the reservation is the running lock itself. Its first holder is the message
  (attempt 0), and the run takes it over as it would from an earlier attempt.

In a canvas the ids are frozen and others wait for them. There a duplicate is published anyway, and
the run decides. Errors that the run can report in its result are not raised there either.

``replace`` takes over the reservation of the queued message first, then sends, then marks the other
as ended. Meanwhile the old message is requeued again and again, and if nothing is ever sent, it
runs. So a publisher that dies in between leaves one message that will run, never none. The run of
the new message sets the mark too, so the old one cannot run after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from celery.utils import uuid

from celery_locks import events, logs, policy
from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.core.requests import AcquireRequest
from celery_locks.errors import AlreadyQueued, LimitMismatch, LockUnavailable
from celery_locks.integration.app import locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.internals import check_arguments
from celery_locks.integration.lock_name import queue_name
from celery_locks.integration.reservation import REPLACES, Reservation
from celery_locks.integration.times import seconds_until
from celery_locks.options import LockOptions
from celery_locks.printable_text import printable
from celery_locks.store.commands.replies import ReplacedReservation
from celery_locks.store.commands.requests import AcquireExtras, reservation_token
from celery_locks.types import Conflict, Holder, LockSpec, this_process
from celery_locks.validation import MAX_SECONDS, MIN_TTL, check_name

logger = logging.getLogger("celery_locks")

# With one of these options others wait for this message: its id is known, or something follows it.
_FROZEN = ("task_id", "chain", "chord", "group_id", "link")
Send = Callable[[dict[str, Any]], Any]


def publish(
    task: Any, lock: LockOptions, args: Any, kwargs: Any, options: dict[str, Any], send: Send
) -> Any:
    """Call ``send(options)`` with a reservation, for a task with a queued scope."""
    is_new = not options.get("retries") and LockHeader.read(options.get("headers")).since is None
    if not lock.enabled or not is_new or task.app.conf.task_always_eager:
        return mark_as_sent(send(options))
    return _Publication(task, lock, args or (), kwargs or {}, options, send).run()


def mark_as_sent(result: Any) -> Any:
    """Mark the result of a call as that of its own message."""
    try:
        result.deduplicated = False
    except AttributeError:  # an apply_async of the user's own may return anything
        pass
    return result


class _Publication:
    """One call that is being published."""

    _is_being_sent = False

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
        self.id_is_frozen = any(options.get(option) for option in _FROZEN)
        self.options = {**options, "task_id": options.get("task_id") or uuid()}
        self.send = send
        self.has_window = bool(
            lock.debounce and not (options.get("countdown") or options.get("eta"))
        )
        if self.has_window:
            self.options["countdown"] = lock.debounce
        self.name = self._queue_name(args, kwargs)

    def _queue_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        try:
            name = queue_name(self.task, self.lock, args, kwargs)
            if name is not None:
                check_name(name)
            return name
        except Exception:
            if self.id_is_frozen:
                return None  # the run fails with the same error, where those who wait see it
            check_arguments(self.task, args, kwargs)  # raises first if the call itself is wrong
            raise

    def run(self) -> Any:
        if self.name is None:
            return self._send_message()
        try:
            return self._publish()
        except LockUnavailable as error:
            return self._on_unavailable(error)
        except LimitMismatch:
            if self.id_is_frozen:
                return self._send_message()
            raise
        except AlreadyQueued:
            raise
        except BaseException:
            self._release_if_acquired()
            raise

    def _release_if_acquired(self) -> None:
        """Release: a time limit may interrupt between the grant and the assignment."""
        if not self._is_being_sent:
            assert self.name is not None
            token = reservation_token(self.options["task_id"])
            Reservation(self.name, token, self.task.app).release(self._lifetime())

    def _publish(self) -> Any:
        replaced: Holder | None = None
        answer = self._acquire()
        while isinstance(answer, Conflict):
            duplicate = policy.on_duplicate(
                answer, self.lock, self.task.name, id_is_frozen=self.id_is_frozen
            )
            events.emit(
                "duplicate",
                answer.name,
                conflict=answer,
                decision=duplicate.decision,
                task=self.task.name,
            )
            replaced = duplicate.other
            if duplicate.decision != "replace" or replaced is None:
                return self._on_duplicate(answer, duplicate)
            answer = self._replace(replaced, answer.as_of)
        if not isinstance(answer.fence, ReplacedReservation):
            replaced = None  # it began or was released meanwhile
        return self._send_reserved(answer, replaced)

    def _replace(self, other: Holder, as_of: float) -> Lease | Conflict:
        if self.has_window:
            # The window began with the first call, whose reservation was handed over.
            elapsed = max(0.0, as_of - other.acquired_at)
            self.options["countdown"] = max(0.0, self.lock.debounce - elapsed)
        return self._acquire(replaces=other)

    def _acquire(self, replaces: Holder | None = None) -> Lease | Conflict:
        assert self.name is not None
        process = this_process()
        holder = Holder(
            task_id=self.options["task_id"],
            task=self.task.name,
            retries=-1,  # attempt 0: nobody has begun it
            host=process.host,
            pid=process.pid,
            extra=self._extra(replaces),
        )
        spec = LockSpec(self.name, self._lifetime(), self.lock.limit)
        request: AcquireRequest[Lease] = AcquireRequest(
            spec,
            holder,
            reservation_token(self.options["task_id"]),
            now(),
            renewed_elsewhere=True,
            extras=AcquireExtras(replace=replaces.token) if replaces else None,
        )
        answer = self.locks.run(self.locks.operations.acquire(request))
        assert isinstance(answer, Lease | Conflict)
        return answer

    def _extra(self, replaces: Holder | None) -> dict[str, Any]:
        """Return details that the reservation alone does not show; a usual call has none."""
        extra: dict[str, Any] = {policy.AWAITED: True} if self.id_is_frozen else {}
        if replaces:
            extra[REPLACES] = [replaces.task_id, _lifetime_of(replaces)]
        queue = self.options.get("queue")
        if self.options.get("exchange") or self.options.get("routing_key"):
            extra[policy.SENT_TO] = None
        elif queue:
            extra[policy.SENT_TO] = str(getattr(queue, "name", queue))
        return extra

    def _lifetime(self) -> float:
        """Seconds that a message which never begins keeps its reservation; not past its expiry."""
        due = seconds_until(self.options.get("countdown") or self.options.get("eta"), self.task.app)
        expires = self.options.get("expires") or self.task.expires
        longest = due + self.lock.pending_ttl
        if expires:
            longest = min(longest, seconds_until(expires, self.task.app))
        return max(MIN_TTL, min(longest, MAX_SECONDS))

    def _on_duplicate(self, conflict: Conflict, duplicate: policy.Duplicate) -> Any:
        if duplicate.other is None:
            return self._send_message()
        if duplicate.decision == "raise":
            raise AlreadyQueued(replace(conflict, holders=(duplicate.other,)))
        result = self.task.AsyncResult(duplicate.other.task_id)
        result.deduplicated = True
        return result

    def _on_unavailable(self, error: LockUnavailable) -> Any:
        """Publish without a reservation, unless ``on_unavailable="fail"``: the run decides."""
        if self.lock.on_unavailable == "fail" and not self.id_is_frozen:
            raise error
        events.emit(
            "unlocked",
            self.name or "",
            task=self.task.name,
            task_id=self.options.get("task_id"),
            does="is published",
            why=str(error),
        )
        return self._send_message()

    def _send_message(self) -> Any:
        self._is_being_sent = True
        return mark_as_sent(self.send(self.options))

    def _send_reserved(self, lease: Lease, replaced: Holder | None) -> Any:
        headers = self.options.get("headers")
        options = LockHeader.read(headers).options
        header = LockHeader(options, queued=lease.name, replaced=replaced is not None)
        self.options["headers"] = header.write(headers)
        try:
            result = self._send_message()
        except BaseException:
            # Not in the queue, as far as is known. Now and not later: the caller may try again.
            self._release(lease)
            raise
        if replaced:
            self._mark_replaced(replaced)
        return result

    def _mark_replaced(self, other: Holder) -> None:
        """Mark the replaced message as ended, and its result; if this fails, its run does it."""
        assert self.name is not None
        assert other.task_id is not None
        call = self.locks.commands.supersede(self.name, other.task_id, _lifetime_of(other))
        try:
            self.locks.perform(call)
            if not self.task.ignore_result:
                self.task.backend.mark_as_revoked(other.task_id, "replaced", store_result=True)
        except Exception as error:  # noqa: BLE001 (the call itself has succeeded)
            logger.warning(
                "task %s is replaced, but could not be marked so: %s",
                printable(other.task_id),
                printable(str(error)),
            )

    def _release(self, lease: Lease) -> None:
        try:
            lease.release()
        except LockUnavailable as error:
            logs.log_deferred_release(lease.name, error)


def _lifetime_of(message: Holder) -> float:
    return message.expires_at - message.acquired_at
