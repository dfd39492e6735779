"""Locks from publish time: ``scope="queued"`` and ``"queued+running"``.

The publisher takes a lock for the message and nobody renews it: it lives until the message begins
to run, or if it never does until it expires or for ``pending_ttl`` beyond its due time. The name
and token travel in the message's header; the token is made of the task's id (``places.py``).

- ``queued``: a lock of its own beside the one of the run. The call that acquires the running lock
  gives it back, so a run costs no more than without it.
- ``queued+running``: the running lock itself. Its first holder is the message (attempt 0), and the
  run takes it over as it would from an earlier attempt.

In a canvas the ids are frozen and others wait for them: there a duplicate is published all the
same, and the run decides; nor does anything raise there that the run can say in its result.

``replace`` takes the place of the queued message first, then sends, then marks the other as ended:
meanwhile the old one comes back again and again, and if nobody ever sends, it runs. So whoever dies
in between leaves one message that will run, never none. The run of the new message sets the mark
too, so the old one cannot come after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from celery.utils import uuid
from celery.utils.time import maybe_make_aware

from celery_locks import events, logs, policy
from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest
from celery_locks.errors import AlreadyQueued, LimitMismatch, LockUnavailable
from celery_locks.integration.app import locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.naming import lock_name
from celery_locks.integration.reservation import REPLACES
from celery_locks.options import LockOptions
from celery_locks.store.commands.locks import AcquireExtras, ReplacedReservation, reservation_token
from celery_locks.text import printable
from celery_locks.types import Conflict, Holder, LockSpec, this_process
from celery_locks.validation import MAX_SECONDS, MIN_TTL, QUEUED, check_name

logger = logging.getLogger("celery_locks")

# Somebody waits for this very message: its id is known to others, or something follows it.
_FROZEN = ("task_id", "chain", "chord", "group_id", "link")
Send = Callable[[dict[str, Any]], Any]


def publish(
    task: Any, lock: LockOptions, args: Any, kwargs: Any, options: dict[str, Any], send: Send
) -> Any:
    """``send(options)`` under the lock of the queue, for a task that has one."""
    is_new = not options.get("retries") and LockHeader.read(options.get("headers")).since is None
    if not lock.enabled or not is_new or task.app.conf.task_always_eager:
        return as_sent(send(options))
    return _Publication(task, lock, args or (), kwargs or {}, options, send).run()


def as_sent(result: Any) -> Any:
    """The result of a call's own message."""
    try:
        result.deduplicated = False
    except AttributeError:  # an apply_async of the user's own may return anything
        pass
    return result


class _Publication:
    """One call on its way into the queue."""

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
        self.id_is_frozen = any(options.get(word) for word in _FROZEN)
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
                return None  # the run fails with the same words, where those who wait see it
            if self.task.typing:
                self.task.__header__(*args, **kwargs)  # what is wrong with the call comes first
            raise

    def run(self) -> Any:
        if self.name is None:
            return self._plainly()
        try:
            return self._publish()
        except LockUnavailable as error:
            return self._unavailable(error)
        except LimitMismatch:
            if self.id_is_frozen:
                return self._plainly()
            raise
        except AlreadyQueued:
            raise
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """A time limit may have struck between the grant and our knowing of it."""
        if not self._is_being_sent:
            assert self.name is not None
            token, locks = reservation_token(self.options["task_id"]), self.locks
            until = now() + self._lifetime()
            renewer.release_later(self.name, token, locks.background_store, locks.commands, until)

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
                return self._duplicate(answer, duplicate)
            answer = self._replace(replaced, answer.as_of)
        if not isinstance(answer.fence, ReplacedReservation):
            replaced = None  # it began or was given up meanwhile
        return self._sent(answer, replaced)

    def _replace(self, other: Holder, as_of: float) -> Lease | Conflict:
        if self.has_window:
            # It has the time of the first call, whose place was handed down.
            gone = max(0.0, as_of - other.acquired_at)
            self.options["countdown"] = max(0.0, self.lock.debounce - gone)
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
        ask: AcquireRequest[Lease] = AcquireRequest(
            spec,
            holder,
            reservation_token(self.options["task_id"]),
            now(),
            renewed_elsewhere=True,
            extras=AcquireExtras(replace=replaces.token) if replaces else None,
        )
        answer = self.locks.take(ask)
        assert isinstance(answer, Lease | Conflict)
        return answer

    def _extra(self, replaces: Holder | None) -> dict[str, Any]:
        """What nobody could tell from the place alone; a usual call has nothing to say."""
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
        """Seconds that the message may hold its place if it never begins; not past its expiry."""
        due = self._seconds(self.options.get("countdown") or self.options.get("eta") or 0.0)
        expires = self.options.get("expires") or self.task.expires
        longest = due + self.lock.pending_ttl
        if expires:
            longest = min(longest, self._seconds(expires))
        return max(MIN_TTL, min(longest, MAX_SECONDS))

    def _seconds(self, when: float | str | datetime) -> float:
        """From now to a moment, however Celery lets one say it."""
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if isinstance(when, datetime):
            aware = maybe_make_aware(when, self.task.app.timezone)
            when = float((aware - datetime.now(UTC)).total_seconds())
        return max(0.0, float(when))

    def _duplicate(self, conflict: Conflict, duplicate: policy.Duplicate) -> Any:
        if duplicate.other is None:
            return self._plainly()
        if duplicate.decision == "raise":
            raise AlreadyQueued(replace(conflict, holders=(duplicate.other,)))
        result = self.task.AsyncResult(duplicate.other.task_id)
        result.deduplicated = True
        return result

    def _unavailable(self, error: LockUnavailable) -> Any:
        """A message is not lost because the lock server is away: the run has its own say."""
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
        return self._plainly()

    def _plainly(self) -> Any:
        self._is_being_sent = True
        return as_sent(self.send(self.options))

    def _sent(self, lease: Lease, replaced: Holder | None) -> Any:
        headers = self.options.get("headers")
        options = LockHeader.read(headers).options
        header = LockHeader(options, queued=lease.name, replaced=replaced is not None)
        self.options["headers"] = header.write(headers)
        try:
            result = self._plainly()
        except BaseException:
            # Not in the queue, as far as anybody knows; at once, for the caller may try again.
            self._give_back(lease)
            raise
        if replaced:
            self._tell_replaced(replaced)
        return result

    def _tell_replaced(self, other: Holder) -> None:
        """It will not run and its result says so; what fails here is made up for by its own run."""
        assert self.name is not None
        assert other.task_id is not None
        call = self.locks.commands.supersede(self.name, other.task_id, _lifetime_of(other))
        try:
            self.locks.perform(call)
            if not self.task.ignore_result:
                self.task.backend.mark_as_revoked(other.task_id, "replaced", store_result=True)
        except Exception as error:  # noqa: BLE001 (the call itself has succeeded)
            logger.warning(
                "task %s is replaced, which could not be told: %s",
                printable(other.task_id),
                printable(str(error)),
            )

    def _give_back(self, lease: Lease) -> None:
        try:
            lease.release()
        except LockUnavailable as error:
            logs.release_deferred(lease.name, error)


def _lifetime_of(message: Holder) -> float:
    return message.expires_at - message.acquired_at


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
    """Whether such a call is queued or runs at this moment; of an unlocked task nobody knows."""
    name = lock_name(task, lock, args, kwargs) if lock.enabled else None
    if name is None:
        return None
    locks = locks_of(task.app)
    holders = locks.holders(name)
    # What is kept for a while after its end (at_least) has nobody at work either.
    if any(not (holder.is_queued or holder.token.startswith("-")) for holder in holders):
        return "running"
    if lock.scope == "queued":
        holders += locks.holders(name + QUEUED)
    return "queued" if any(holder.is_queued for holder in holders) else None
