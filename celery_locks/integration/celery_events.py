"""Celery events about locks, for Flower and other monitors; sent by workers with ``-E``.

``lock-acquired``, ``lock-conflict``, ``lock-deadlock``, ``lock-released``, ``lock-lost``, each with
the task's ``uuid`` and ``name``, the ``lock``, its ``fence`` and details of the event (``waited``,
``held_for``, ``policy``, ``why``). They are not named ``task-…``: a monitor takes an unknown event
of that kind for a state of the task. ``app.conf.locks_events = False`` sends none of them.

The process that runs the task sends them, which is the child in a prefork pool. A task never waits
for the broker here: events are appended to a deque, and a thread sends them in batches, as the
worker does with its own events. Events are dropped while the broker is unavailable.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_locks import events, settings
from celery_locks.clock import now
from celery_locks.events import LockEvent
from celery_locks.forking import run_after_fork
from celery_locks.integration.signals import at_end_of_child
from celery_locks.logs import Reports

EVERY = 0.2
_MOST = 10_000
TYPES = {
    "acquired": "lock-acquired",
    "conflict": "lock-conflict",
    "deadlock": "lock-deadlock",
    "released": "lock-released",
    "lost": "lock-lost",
}
_FIELDS = ("waited", "held_for", "policy", "why", "ours")


_subscription: Callable[[], None] | None = None


def send_events_of_worker(sender: Any = None, **_: Any) -> None:
    """Send events about the locks of a worker's tasks, if the worker sends events."""
    global _subscription
    if _subscription:
        _subscription()
        _subscription = None
    if not sender.task_events or not settings.of(sender.app).events:
        return
    event_sender = EventSender(sender.app, sender.hostname)
    _subscription = events.subscribe(event_sender)
    run_after_fork(event_sender.after_fork, "integration")
    at_end_of_child(event_sender.wait_idle)
    atexit.register(event_sender.wait_idle)


class EventSender:
    """A subscriber of lock events that sends them as Celery events, in batches."""

    def __init__(self, app: Any, hostname: str) -> None:
        self._app = app
        self._hostname = hostname
        self._reports = Reports()
        self.after_fork()

    def after_fork(self) -> None:
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_MOST)
        self._thread: threading.Thread | None = None
        self._is_sending = False

    def __call__(self, event: LockEvent) -> None:
        task_id = event.detail.get("task_id")
        if event.kind not in TYPES or not task_id:
            return
        self._waiting.append((TYPES[event.kind], _fields(event, task_id)))
        if self._thread is None:
            # Not a native thread: with gevent or eventlet the broker's connections are patched.
            self._thread = threading.Thread(target=self._run, name="lock-events", daemon=True)
            self._thread.start()

    def wait_idle(self, seconds: float = 1.0) -> None:
        """Wait until all events are sent; called when a child exits."""
        until = now() + seconds
        while self._thread and (self._waiting or self._is_sending) and now() < until:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            if self._waiting:
                self._is_sending = True
                self._send()
                self._is_sending = False
            time.sleep(EVERY)

    def _send(self) -> None:
        batch = list(self._take_waiting())
        try:
            with self._app.amqp.producer_pool.acquire(block=True) as producer:
                dispatcher = self._app.events.Dispatcher(
                    producer.connection,
                    self._hostname,
                    channel=producer.channel,
                    buffer_while_offline=False,
                    buffer_group=frozenset({"lock"}),
                    buffer_limit=_MOST + 1,
                )
                with dispatcher:
                    for kind, fields in batch:
                        dispatcher.send(kind, **fields)
                    dispatcher.flush()
        except Exception as error:  # noqa: BLE001 (a lost event must not fail a task)
            self._reports.warning("%d events about locks could not be sent: %s", len(batch), error)

    def _take_waiting(self) -> Any:
        with suppress(IndexError):
            while True:
                yield self._waiting.popleft()


def _fields(event: LockEvent, task_id: str) -> dict[str, Any]:
    detail = event.detail
    details = {name: detail[name] for name in _FIELDS if name in detail}
    about = {"uuid": task_id, "name": detail.get("task"), "timestamp": event.at}
    return about | {"lock": event.name, "fence": event.fence} | details
