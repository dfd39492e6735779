"""Calls that become one run with arguments from several calls (``arguments="first"``, or a merge).

The queued message carries the arguments of all calls so far, and the lock server keeps a copy of
them with its reservation (``a:<name>``), under the token of that reservation. Another call:

1. ``prepare_message`` announces the new message and reads the queued one, with its arguments.
2. The merge function runs here, and the new message is sent with its result.
3. ``commit_message`` gives the reservation to the new message and marks the old one, so that it
   never runs; in one step, and only if the reservation is still the one that was read. Otherwise it
   marks the new message, and the call starts again at 1, with a new task id.

A message that is not committed never runs. So whatever happens between these steps (the process
dies, the broker refuses the message or accepts it without a reply, another call is faster, the old
message begins to run), the old message or the new one runs, never both and never none.

The first call of a window does the same, without an old message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils import uuid
from kombu.exceptions import EncodeError

from celery_locks import events
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.idempotency import codec_for
from celery_locks.integration.internals import check_arguments, dump_models
from celery_locks.integration.lock_name import parameters_of, queue_name
from celery_locks.policy import AWAITED
from celery_locks.printable_text import printable
from celery_locks.store.commands.replies import PreparedMessage
from celery_locks.types import Conflict, Holder, LockSpec

if TYPE_CHECKING:
    from celery_locks.integration.publishing import Publication

logger = logging.getLogger("celery_locks")

# Larger arguments are not merged: every call of a window reads and writes them.
ARGUMENT_BYTES = 256 * 1024
# A message that is delivered earlier waits this long for its publisher to commit it.
COMMIT_WITHIN = 10.0


class _Call(NamedTuple):
    """The arguments of a call, as the worker gets them, and the text that is stored."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    text: str


class MergedPublication:
    """One call that is merged with the one in the queue, if there is one."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._task = publication.task
        self._lock = publication.lock
        self._locks = publication.locks
        assert publication.name is not None
        self._name: str = publication.name
        serializer = publication.options.get("serializer") or self._task.serializer
        self._codec = codec_for(serializer)

    def run(self) -> Any:
        args, kwargs = self._publication.call
        check_arguments(self._task, args, kwargs)
        own = self._encode(*dump_models(self._task, args, kwargs))
        while True:
            try:
                prepared = self._prepare()
            except LockUnavailable as error:
                self._forget_prepared()
                return self._publication.on_unavailable(error)
            other, call = self._merge(own, prepared)
            if call is None or len(call.text) > ARGUMENT_BYTES:
                return self._send_alone(call)
            if other and call.text == prepared.arguments and not self._lock.settle:
                return self._return_existing(prepared, other)
            result = self._publication.send_message((call.args, call.kwargs))
            if self._commit(call, other):
                self._on_committed(prepared, other)
                return result

    def _encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        """Return the call as the worker gets it, so that both calls of a merge look the same."""
        try:
            text = self._codec.encode([list(args), dict(kwargs)])
        except EncodeError as error:
            raise LockUsageError(
                f"task {self._task.name}: these arguments cannot be serialised, which merging "
                f"them needs: {error}"
            ) from error
        return self._decode(text)

    def _decode(self, text: str) -> _Call:
        args, kwargs = self._codec.decode(text)
        return _Call(tuple(args), kwargs, text)

    def _prepare(self) -> PreparedMessage:
        """Announce a message with a new id, and read the one in the queue."""
        publication = self._publication
        publication.options["task_id"] = uuid()
        publication.reserve_in_header(self._name)
        call = self._locks.commands.prepare_message(
            self._name, publication.options["task_id"], COMMIT_WITHIN, publication.lifetime()
        )
        prepared: PreparedMessage = self._locks.perform(call)
        other = self._mergeable(prepared)
        if other and publication.leave_due_message(other):
            return self._prepare()
        publication.set_due(other.age if other else 0.0)
        return prepared

    def _mergeable(self, prepared: PreparedMessage) -> Conflict | None:
        """Return the conflict with a queued call of the same task whose arguments are known."""
        if prepared.conflict is None or not prepared.arguments:
            return None
        other = prepared.conflict.holders[0]
        is_queued = other.task == self._task.name and other.attempt == 0
        return prepared.conflict if is_queued and not other.extra.get(AWAITED) else None

    def _merge(self, own: _Call, prepared: PreparedMessage) -> tuple[Holder | None, _Call | None]:
        """Return the holder to replace and the call to make; no call if they cannot be merged."""
        if prepared.conflict is None:
            return None, own
        other = prepared.conflict.holders[0]
        if not self._mergeable(prepared):
            return other, None
        try:
            earlier = self._decode(prepared.arguments)
        except Exception as error:  # noqa: BLE001 (whatever a serializer may raise)
            logger.warning(
                "the arguments of the queued call of %s cannot be read: %s",
                self._task.name,
                printable(str(error)),
            )
            return other, None
        if not callable(self._lock.arguments):
            return other, earlier
        return other, self._merge_arguments(self._lock.arguments, earlier, own)

    def _merge_arguments(self, merge: Any, earlier: _Call, later: _Call) -> _Call:
        parameters = parameters_of(self._task)
        both = (parameters.arguments(it.args, it.kwargs) for it in (earlier, later))
        try:
            args, kwargs = parameters.call(merge(*both))
        except LockUsageError as error:
            raise LockUsageError(
                f"task {self._task.name}: the result of the merge function: {error}"
            ) from None
        merged = self._encode(args, kwargs)
        name = queue_name(self._task, self._lock, tuple(args), kwargs)
        if name != self._name:
            raise LockUsageError(
                f"task {self._task.name}: the merge function returned arguments for the lock "
                f"{name!r}, not {self._name!r}; it must not change what the key is made of"
            )
        return merged

    def _send_alone(self, call: _Call | None) -> Any:
        """Send this call as it is, without a reservation; the one in the queue stays."""
        if call:
            logger.warning(
                "a call of %s is published on its own: its merged arguments have %d bytes, "
                "%d is the most",
                self._task.name,
                len(call.text),
                ARGUMENT_BYTES,
            )
        self._forget_prepared()
        return self._publication.send_message()

    def _forget_prepared(self) -> None:
        """Let the message have another id, as the announced one waits for a commit."""
        self._publication.options["task_id"] = uuid()
        self._publication.reserve_in_header("")
        self._publication.set_due(0.0)

    def _return_existing(self, prepared: PreparedMessage, other: Holder) -> Any:
        """Return the result of the queued call: this one changes neither it nor its time."""
        self._emit(prepared, "return_existing")
        return self._publication.result_of(other)

    def _commit(self, call: _Call, other: Holder | None) -> bool:
        spec = LockSpec(self._name, self._publication.lifetime())
        holder = self._publication.holder()
        command = self._locks.commands.commit_message(spec, holder, other, call.text)
        try:
            return bool(self._locks.perform(command))
        except LockUnavailable as error:
            # Without the server nobody can tell. To publish the call again could run it twice.
            unknown = LockUnavailable(
                f"the call of {self._task.name} was sent, and it runs unless the lock server lost "
                f"the last command: {error}"
            )
            unknown.may_have_executed = True
            raise unknown from error

    def _on_committed(self, prepared: PreparedMessage, other: Holder | None) -> None:
        if other:
            self._emit(prepared, "replace")
            self._publication.store_replaced(other)

    def _emit(self, prepared: PreparedMessage, decision: str) -> None:
        events.emit(
            "duplicate",
            self._name,
            conflict=prepared.conflict,
            decision=decision,
            task=self._task.name,
        )


__all__ = ["ARGUMENT_BYTES", "MergedPublication"]
