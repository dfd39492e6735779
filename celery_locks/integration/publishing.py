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
the run decides. Errors that the run can report in its result are not raised there either. An id
that the caller chose outside a canvas changes nothing, except that a second call may have the same
one: a random field of the reservation tells the two apart.

With ``max_queued`` the reservation of ``queued`` has that limit. A publisher that waits for room
joins the lock's queue of waiters, as a run would: first come, first served.

``replace`` takes over the reservation of the queued message first, then sends, then marks the other
as ended. Meanwhile the old message is requeued again and again, and if nothing is ever sent, it
runs. So a publisher that dies in between leaves one message that will run, never none. The run of
the new message sets the mark too, so the old one cannot run after it.

More than 300 lines: the steps of one publication share its state; merging calls is in
``merged_publication.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from numbers import Real
from typing import Any

from celery.result import EagerResult
from celery.states import SUCCESS
from celery.utils import uuid

from celery_locks import events, logs, policy
from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import AlreadyQueued, LockUnavailable
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.displacement import ask_to_stop, plan_displacement
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.internals import check_arguments, is_frozen
from celery_locks.integration.lock_name import group_of, limit_of, queue_name
from celery_locks.integration.merged_publication import MergedPublication
from celery_locks.integration.message_priority import rank_of
from celery_locks.integration.message_text import keeping_producer, record_message
from celery_locks.integration.not_acquired import joined_fence
from celery_locks.integration.reservation import REPLACES, Reservation, seconds_until
from celery_locks.options import LATEST, PARKING, LockOptions
from celery_locks.printable_text import printable
from celery_locks.store.commands.kept_messages import KeptCommands
from celery_locks.store.commands.locks import AcquireExtras, ParkRequest, reservation_token
from celery_locks.store.commands.replies import Parked, Rejection, ReplacedReservation
from celery_locks.store.effects import Call
from celery_locks.types import Conflict, Holder, LockSpec, this_process
from celery_locks.validation import MAX_SECONDS, MIN_TTL, QUEUED, check_name

logger = logging.getLogger("celery_locks")

# With one of these options others wait for this message: its group, or what follows it.
_AWAITED = ("chain", "chord", "group_id", "link")
# ``send(options)``, or ``send(options, (args, kwargs))`` with other arguments than the call's own.
Send = Callable[..., Any]
Answer = Lease | Conflict | Rejection


# The task id of the message that this thread or greenlet is sending.
_sending: ContextVar[str] = ContextVar("celery_locks.sending", default="")


def is_being_sent(task_id: str | None) -> bool:
    """Whether a publication is sending this message now, so that it has been decided about."""
    return bool(task_id) and _sending.get() == task_id


def publish_call(task: Any, args: Any, kwargs: Any, options: dict[str, Any], send: Send) -> Any:
    """Call ``send(options)`` for a call of a task, with a reservation if its scope is queued."""
    lock = task.lock_options(LockHeader.read(options.get("headers")).options)
    if lock.scope == "running":
        return mark_as_sent(send(options))
    return publish(task, lock, args, kwargs, options, send)


def publish(
    task: Any, lock: LockOptions, args: Any, kwargs: Any, options: dict[str, Any], send: Send
) -> Any:
    """Call ``send(options)`` with a reservation, for a task with a queued scope.

    ``send(options, (args, kwargs))`` sends other arguments (``merged_publication.py``).
    """
    header = LockHeader.read(options.get("headers"))
    is_new = not options.get("retries") and header.since is None and not header.parked
    if not lock.enabled or not is_new or task.app.conf.task_always_eager:
        return mark_as_sent(send(options))
    return Publication(task, lock, args or (), kwargs or {}, options, send).run()


def mark_as_sent(result: Any) -> Any:
    """Mark the result of a call as that of its own message."""
    try:
        result.deduplicated = False
    except AttributeError:  # an apply_async of the user's own may return anything
        pass
    return result


class Publication:
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
        self.id_is_frozen = is_frozen(options) or any(map(options.get, _AWAITED))
        self.id_is_chosen = bool(options.get("task_id")) and not self.id_is_frozen
        self.options = {**options, "task_id": options.get("task_id") or uuid()}
        self._fix_expiry()
        self.send = send
        self.limit = 1
        if lock.arguments != "last" and options.get("task_id"):
            self.id_is_frozen = True  # it cannot be merged: each try needs an id of its own
        self.call = (args, kwargs)
        self.name = self._queue_name(args, kwargs)
        is_due_later = options.get("countdown") or options.get("eta")
        self.has_window = bool(lock.has_window and self.name and not is_due_later)
        self.set_due(0.0)

    def _fix_expiry(self) -> None:
        """Turn seconds into a moment: the message, made later, must not outlive its reservation."""
        expires = self.options.get("expires") or self.task.expires
        if isinstance(expires, Real) and 0 < float(expires) < MAX_SECONDS:
            self.options["expires"] = datetime.now(UTC) + timedelta(seconds=float(expires))

    def _queue_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        try:
            name = queue_name(self.task, self.lock, args, kwargs)
            if name is not None:
                check_name(name)
                self.limit = limit_of(self.task, self.lock.queue_limit, args, kwargs)
            return name
        except Exception:
            if self.id_is_frozen:
                return None  # the run fails with the same error, where those who wait see it
            check_arguments(self.task, args, kwargs)  # raises first if the call itself is wrong
            raise

    def run(self) -> Any:
        if self.name is None:
            return self.send_message()
        if self.lock.arguments != "last" and not self.id_is_frozen:
            return MergedPublication(self).run()
        try:
            return self._publish()
        except LockUnavailable as error:
            return self.on_unavailable(error)
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
            Reservation(self.name, token, self.task.app).release(self.lifetime())

    def _publish(self) -> Any:
        replaced: Holder | None = None
        answer = self._acquire()
        while isinstance(answer, Conflict):
            duplicate = policy.on_duplicate(
                answer,
                self.lock,
                self.task.name,
                self.options["task_id"],
                id_is_frozen=self.id_is_frozen,
            )
            events.emit(
                "duplicate",
                answer.name,
                conflict=answer,
                decision=duplicate.decision,
                task=self.task.name,
            )
            replaced = duplicate.other
            if duplicate.decision in PARKING:
                return self._acquire_or_park(answer, latest=duplicate.decision in LATEST)
            if duplicate.decision != "replace" or replaced is None:
                return self._on_duplicate(answer, duplicate)
            answer = self._replace(replaced, answer)
        assert isinstance(answer, Lease)
        if not isinstance(answer.fence, ReplacedReservation):
            replaced = None  # it began or was released meanwhile
        return self._send_reserved(answer, replaced)

    def set_due(self, elapsed: float) -> None:
        """Set when the message is due, in a window that began ``elapsed`` seconds ago."""
        if self.has_window:
            self.options["countdown"] = self.lock.due_in(elapsed)

    def leave_due_message(self, conflict: Conflict) -> bool:
        """Take the reservation from a message that is due and about to start; it starts anyway.

        Then this call opens a new window. If it replaced that message, calls in quick succession
        would replace it again and again, and nothing would run. While the lock is busy, the message
        has to wait anyway and may be replaced.

        If the last arguments count and a later message starts first, it does not start any more.
        """
        is_due = self.has_window and self.lock.due_in(conflict.age) <= 0
        if not is_due or self.lock.scope != "queued":
            return False
        limit = limit_of(self.task, self.lock.limit, *self.call)
        if len(self.locks.holders(conflict.name.removesuffix(QUEUED))) >= limit:
            return False
        self.locks.perform(self.locks.commands.leave_message(conflict.name, conflict.holders[0]))
        return True

    def _replace(self, other: Holder, conflict: Conflict) -> Answer:
        # The window began with the first call, whose reservation was handed over.
        conflict = replace(conflict, holders=(other,))
        if self.leave_due_message(conflict):
            self.set_due(0.0)
            return self._acquire()
        self.set_due(conflict.age)
        return self._acquire(replaces=other)

    def _acquire_or_park(self, conflict: Conflict, *, latest: bool) -> Any:
        """Send the message, or park it if the lock is still busy: one call decides."""
        assert self.name is not None
        headers = self.options.get("headers")
        displacement = plan_displacement(self.lock, conflict)
        header = replace(
            LockHeader.read(headers).of_call(),
            queued=self.name,
            parked=True,
            joins=joined_fence(self.lock, conflict),
            displacements=displacement.number,
        )
        message, result = record_message(
            self.task.app, partial(self._record, headers=header.write(headers))
        )
        group = group_of(self.task, self.lock.fair_by, *self.call)
        park = ParkRequest(
            self.holder()._replace(extra={**self._extra(None), **displacement.extra}),
            0,
            self.lifetime(),
            message,
            self.lock.max_parked,
            group,
            latest,
            rank_of(self.task.app, message) if self.lock.by_priority else 0,
        )
        answer = self._acquire(park=park)
        if isinstance(answer, Conflict):
            own = reservation_token(self.options["task_id"], parked=True)
            if own not in (it.token for it in answer.holders):
                raise AlreadyQueued(answer)  # too many wait
            answer = Parked(0)  # the first reply was lost, and the message is woken already
        if isinstance(answer, Lease):
            return self._send_reserved(answer, None)
        assert isinstance(answer, Parked)
        self._is_being_sent = True
        ask_to_stop(self.locks, self.name, displacement.runs, self.options["task_id"])
        events.emit(
            "parked",
            self.name,
            task=self.task.name,
            task_id=self.options["task_id"],
            position=answer.position,
            why="the lock is busy at publish",
        )
        return result

    def _record(self, **options: Any) -> Any:
        """Send the message with other options, which do not reach the broker."""
        try:
            return self._send_with(**options)
        finally:
            self._is_being_sent = False

    def _send_with(self, **options: Any) -> Any:
        """Send the message with other options, among them a producer."""
        outer, self.options = self.options, {**self.options, **options}
        self.options.pop("connection", None)  # Celery would prefer it to the producer
        try:
            return self.send_message()
        finally:
            self.options = outer

    def _acquire(self, replaces: Holder | None = None, park: ParkRequest | None = None) -> Answer:
        assert self.name is not None
        waits = self.lock.on_publish == "wait" and not self.id_is_frozen
        patience = self.lock.patience if waits else None
        spec = LockSpec(self.name, self.lifetime(), self.limit, patience)
        request: AcquireRequest[Lease] = AcquireRequest(
            spec,
            self.holder(replaces),
            reservation_token(self.options["task_id"]),
            now(),
            renewed_elsewhere=True,
            extras=(
                AcquireExtras(replace=replaces.token if replaces else "", park=park)
                if replaces or park
                else None
            ),
        )
        return self.locks.run(self.locks.operations.acquire(request))

    def holder(self, replaces: Holder | None = None) -> Holder:
        """Return the holder of the reservation: the message, which nobody has begun."""
        process = this_process()
        return Holder(
            task_id=self.options["task_id"],
            task=self.task.name,
            retries=-1,  # attempt 0
            host=process.host,
            pid=process.pid,
            extra=self._extra(replaces),
        )

    def _extra(self, replaces: Holder | None) -> dict[str, Any]:
        """Return details that the reservation alone does not show; a usual call has none."""
        extra: dict[str, Any] = {policy.AWAITED: True} if self.id_is_frozen else {}
        if self.id_is_chosen:
            extra[policy.CALL] = new_token()
        if replaces:
            extra[REPLACES] = [replaces.task_id, _lifetime_of(replaces)]
        queue = self.options.get("queue")
        if self.options.get("exchange") or self.options.get("routing_key"):
            extra[policy.SENT_TO] = None
        elif queue:
            extra[policy.SENT_TO] = str(getattr(queue, "name", queue))
        return extra

    def lifetime(self) -> float:
        """Seconds that a message which never begins keeps its reservation; not past its expiry."""
        due = seconds_until(self.options.get("countdown") or self.options.get("eta"), self.task.app)
        expires = self.options.get("expires")
        longest = due + self.lock.pending_ttl
        if expires:
            longest = min(longest, seconds_until(expires, self.task.app))
        return max(MIN_TTL, min(longest, MAX_SECONDS))

    def _on_duplicate(self, conflict: Conflict, duplicate: policy.Duplicate) -> Any:
        if duplicate.other is None:
            return self.send_message()
        if duplicate.decision == "raise":
            raise AlreadyQueued(replace(conflict, holders=(duplicate.other,)))
        if duplicate.decision == "skip":
            return self._skipped(conflict.name, duplicate.other)
        return self.result_of(duplicate.other)

    def result_of(self, other: Holder) -> Any:
        """Return the result of the call that this one duplicates."""
        result = self.task.AsyncResult(other.task_id)
        result.deduplicated = True
        return result

    def _skipped(self, name: str, other: Holder) -> Any:
        """Return a result that is ready and says, as that of a skipped run, that nothing runs."""
        value = {
            "skipped": True,
            "lock": name.removesuffix(QUEUED),
            "holder": other.as_public_dict(),
        }
        result = EagerResult(self.options["task_id"], value, SUCCESS)
        result.deduplicated = True
        return result

    def on_unavailable(self, error: LockUnavailable) -> Any:
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
        return self.send_message()

    def send_message(self, call: Any = None) -> Any:
        """Send the message, with the arguments of ``call`` if others than this call's own."""
        self._is_being_sent = True
        outer = _sending.set(self.options["task_id"])
        try:
            return mark_as_sent(self.send(self.options, *([call] if call else [])))
        finally:
            _sending.reset(outer)

    def _send_reserved(self, lease: Lease, replaced: Holder | None) -> Any:
        self.reserve_in_header(lease.name, replaced=replaced is not None)
        try:
            result = self._send_kept(lease) if self.lock.keep_message else self.send_message()
        except BaseException:
            # Not in the queue, as far as is known. Now and not later: the caller may try again.
            self._release(lease)
            raise
        if replaced:
            self._mark_replaced(replaced)
        return result

    def _send_kept(self, lease: Lease) -> Any:
        """Send the message and keep a copy of it until it starts (``kept_messages.py``)."""

        def keep(text: str) -> None:
            self.locks.perform(
                KeptCommands(self.locks.commands).keep(lease.name, lease.token, text)
            )

        with keeping_producer(self.task.app, self.options, keep) as producer:
            return self._send_with(producer=producer)

    def reserve_in_header(self, name: str, *, replaced: bool = False) -> None:
        """Write the reservation's name into the message's header."""
        headers = self.options.get("headers")
        header = replace(LockHeader.read(headers).of_call(), queued=name, replaced=replaced)
        self.options["headers"] = header.write(headers)

    def _mark_replaced(self, other: Holder) -> None:
        """Mark the replaced message as ended, and its result; if this fails, its run does it."""
        assert self.name is not None
        assert other.task_id is not None
        call = self.locks.commands.supersede(self.name, other.task_id, _lifetime_of(other))
        self.store_replaced(other, call)

    def store_replaced(self, other: Holder, call: Call | None = None) -> None:
        """Store in its result that a message is replaced, after ``call`` has marked it so."""
        try:
            if call:
                self.locks.perform(call)
            if not self.task.ignore_result:
                self.task.backend.mark_as_revoked(other.task_id, "replaced", store_result=True)
        except Exception as error:  # noqa: BLE001 (the call itself has succeeded)
            logger.warning(
                "task %s is replaced, but could not be marked so: %s",
                printable(str(other.task_id)),
                printable(str(error)),
            )

    def _release(self, lease: Lease) -> None:
        try:
            lease.release()
        except LockUnavailable as error:
            logs.log_deferred_release(lease.name, error)


def _lifetime_of(message: Holder) -> float:
    return message.expires_at - message.acquired_at
