"""Parked messages: tasks that wait for a busy lock without a worker slot (``on_conflict="park"``).

The complete message is kept on the lock server, in the queue of its lock (``lib/park.lua``). When
its turn comes, the server reserves the slot for it, and a worker publishes it to its queue:

==============================================  ====================================================
a process dies ...                              then
==============================================  ====================================================
before the message is parked                    the broker delivers it again, with ``acks_late``
after it is parked, before it is acknowledged   the copy is parked again, which has no effect
before a woken message is published             another worker publishes it within seconds
after it is published, before that is noted     another worker publishes a copy, which does not run:
                                                the first one runs or has run
after it is woken and published                 as for any message of the broker; the slot is
                                                reserved for ``pending_ttl``
==============================================  ====================================================

With no worker alive nothing is lost and nothing runs; the first one that starts wakes what is due.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from kombu import Connection, Producer, pools
from kombu.compression import compress
from kombu.serialization import dumps
from kombu.utils import json

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import ForeignData, LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.displacement import stop_displaced
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.revoked_results import mark_revoked
from celery_locks.logs import Reports
from celery_locks.printable_text import printable
from celery_locks.store.commands.parking import ParkCommands, ParkedMessage

logger = logging.getLogger("celery_locks")

# Seconds between two polls of a worker, on average. A process that wakes a message by releasing its
# lock polls at once.
POLL_EVERY = 2.0
_STOP_WITHIN = 5.0
# Seconds for which a broker may confirm a message, and for which a failing publish is tried with
# other messages: somewhat less than PUBLISH_MS in poll_due.lua, after which another worker tries.
_PUBLISH_WITHIN = 4.0
# Once more, on a new connection: a pooled one may be broken.
_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


class _Recorder(Producer):  # type: ignore[misc]
    """Keeps the message that Celery gives it instead of sending it."""

    message: dict[str, Any] | None = None

    def publish(self, body: Any, **options: Any) -> None:
        if self.message is not None:
            return  # the event task-sent, which is sent with the same producer
        content_type, encoding, data = dumps(body, options.pop("serializer"))
        headers = dict(options.pop("headers") or {})
        if compression := options.pop("compression", None):
            data, headers["compression"] = compress(data, compression)
        if isinstance(data, bytes):
            data = {"base64": base64.b64encode(data).decode()}
        queues = [entity.name for entity in options.pop("declare", None) or ()]
        exchange = options.pop("exchange", "")
        for name in ("retry", "retry_policy", "timeout", "confirm_timeout"):
            options.pop(name, None)
        self.message = {
            "body": data,
            "content_type": content_type,
            "content_encoding": encoding,
            "headers": headers,
            "exchange": getattr(exchange, "name", exchange) or "",
            "queues": queues,
            **options,
        }


def record_message(app: Any, send: Callable[..., Any]) -> tuple[str, Any]:
    """Return the message that ``send(producer=…)`` would send, as a text, and its result."""
    with app.connection_for_write() as connection:
        recorder = _Recorder(connection, auto_declare=False)
        result = send(producer=recorder)
        if recorder.message is None:
            raise LockUsageError("the task's apply_async sent no message, so it cannot be parked")
        return json.dumps(recorder.message), result


def publish_message(app: Any, text: str) -> None:
    """Publish a recorded message; return when the broker has it, as far as it says so."""
    message = json.loads(text)
    body, queues = message.pop("body"), message.pop("queues")
    if isinstance(body, dict):
        body = base64.b64decode(body["base64"])
    confirming = _confirming_connection(app)
    pool = app.producer_pool if confirming is None else pools.producers[confirming]
    options = {} if confirming is None else {"timeout": _PUBLISH_WITHIN}
    with pool.acquire(block=True) as producer:
        declare = [app.amqp.queues[name] for name in queues]
        producer.publish(
            body, declare=declare, retry=True, retry_policy=_RETRY, **options, **message
        )


def _confirming_connection(app: Any) -> Connection | None:
    """Return the connection whose pool waits for RabbitMQ's confirmation; else None.

    Without it a publish returns when the message is in the socket. Other transports wait for a
    reply anyway.
    """
    if app not in _confirming:
        connection = app.connection_for_write(transport_options={"confirm_publish": True})
        is_amqp = connection.transport.driver_name == "py-amqp"
        _confirming[app] = connection if is_amqp else None
    return _confirming[app]


# Only the keys of kombu's pools, never connected: they may be forked.
_confirming: WeakKeyDictionary[Any, Connection | None] = WeakKeyDictionary()


def _headers_of(parked: ParkedMessage) -> dict[str, Any]:
    headers: dict[str, Any] = json.loads(parked.message)["headers"]
    return headers


def _emit_woken(parked: ParkedMessage) -> None:
    headers, name = _headers_of(parked), ""
    with suppress(LockUsageError):  # it is published, and its run reports a wrong header
        name = LockHeader.read(headers).queued
    events.emit(
        "woken",
        name,
        parked.token,
        task=headers.get("task"),
        task_id=headers.get("id"),
        is_repeat=parked.is_repeat,
    )


class Waker:
    """Publishes the messages of an app that are woken, in any thread or process of a worker."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._reports = Reports()

    def wake_due(self) -> int:
        """Publish what is due on all shards; return how many messages. Never raises."""
        woken = 0
        try:
            locks = locks_of(self._app)
            for root in locks.commands.roots:
                woken += self._wake_in_shard(locks, root)
        except LockUsageError:
            pass  # an app without a lock server has no parked messages
        except LockUnavailable as error:
            self._reports.warning("parked tasks are not woken now: %s", error)
        except Exception:  # noqa: BLE001 (the next poll, or another worker, goes on)
            self._reports.failure("parked tasks are not woken now")
        return woken

    def _wake_in_shard(self, locks: AppLocks, root: str) -> int:
        commands, woken = ParkCommands(locks.commands), 0
        while True:
            due = locks.perform(commands.poll(root))
            own = [message for message in due.messages if self._knows_task(message)]
            if len(own) < len(due.messages):
                foreign = [message for message in due.messages if message not in own]
                locks.perform(commands.give_back(root, foreign))
            done, gives_up = self._handle_all(own)
            if done:
                locks.perform(commands.confirm(root, done))
            woken += len(done)
            self._look_at(locks, commands, root, due.names)
            is_next_due = due.next_in is not None and due.next_in <= 0
            if gives_up or (not is_next_due and not due.names):
                return woken

    def _knows_task(self, parked: ParkedMessage) -> bool:
        """Return True if a worker of this app may run it: another app may have another broker."""
        try:
            return _headers_of(parked).get("task") in self._app.tasks
        except (ValueError, KeyError, TypeError, AttributeError):
            return True  # nobody can read it: to publish it fails alone, and is reported

    def _look_at(
        self, locks: AppLocks, commands: ParkCommands, root: str, names: list[str]
    ) -> None:
        """Wake those who wait for a holder that has lapsed; stop runs that are displaced."""
        if not names:
            return
        try:
            locks.perform(commands.wake_waiters(root, names))
            stop_displaced(self._app, locks, names)
        except ForeignData as error:
            if len(names) == 1:
                self._reports.warning("parked tasks of lock %r are not woken: %s", names[0], error)
                return
            for name in names:  # one of them must not keep the others from being woken
                self._look_at(locks, commands, root, [name])

    def _handle_all(self, messages: list[ParkedMessage]) -> tuple[list[ParkedMessage], bool]:
        """Handle each: return those that are done, and True if the broker seems to be away.

        A message that cannot be published must not hold up others; but without a broker each try
        may take seconds, and this may be a run that ends.
        """
        done, give_up_at = [], now() + _PUBLISH_WITHIN
        for message in messages:
            if self._handle(message):
                done.append(message)
            elif now() > give_up_at:
                return done, True
        return done, False

    def _handle(self, parked: ParkedMessage) -> bool:
        """Publish or discard a message; return False if that has to be tried again."""
        try:
            if parked.superseded_by:
                self._discard(parked)
            else:
                publish_message(self._app, parked.message)
                _emit_woken(parked)
        except LockUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 (each transport and backend has its own errors)
            self._reports.warning(
                "parked task %s cannot be %s now, which is tried again: %s",
                printable(parked.token[1:]),
                "discarded" if parked.superseded_by else "published",
                printable(str(error)),
            )
            return False
        return True

    def _discard(self, parked: ParkedMessage) -> None:
        """End a message whose place another one took: its result is REVOKED, and no copy runs."""
        headers, locks = _headers_of(parked), locks_of(self._app)
        name, task_id = LockHeader.read(headers).queued, headers["id"]
        locks.perform(locks.commands.supersede(name, task_id, locks.settings.done_ttl))
        mark_revoked(self._app, parked.message, f"superseded by {parked.superseded_by}")


class _Polling(threading.Thread):
    """Wakes what is due from time to time, while the worker runs."""

    def __init__(self, waker: Waker) -> None:
        super().__init__(name="celery-locks waker", daemon=True)
        self._waker = waker
        self._poll_now = threading.Event()
        self._is_stopping = False

    def run(self) -> None:
        while True:
            self._poll_now.wait(POLL_EVERY * random.uniform(0.5, 1.5))
            self._poll_now.clear()
            if self._is_stopping:
                return
            self._waker.wake_due()

    def poll_now(self) -> None:
        self._poll_now.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._poll_now.set()
        self.join(_STOP_WITHIN)


_wakers: WeakKeyDictionary[Any, Waker] = WeakKeyDictionary()
_polling: dict[int, _Polling] = {}


def waker_of(app: Any) -> Waker:
    """Return the waker of an app, the same each time."""
    found = _wakers.get(app)
    if found is None:
        found = _wakers[app] = Waker(app)
    return found


def start_polling(sender: Any = None, **_: Any) -> None:
    """Begin to wake parked messages: a worker is ready."""
    app = sender.app
    with suppress(LockUsageError):
        locks_of(app)
        _polling[id(app)] = polling = _Polling(waker_of(app))
        polling.start()
        renewer.call_on_woke(_poll_now)


def _poll_now() -> None:
    for polling in list(_polling.values()):
        polling.poll_now()


def stop_polling(sender: Any = None, **_: Any) -> None:
    """Stop to wake parked messages: the worker shuts down."""
    for polling in list(_polling.values()):
        polling.stop()
    _polling.clear()
