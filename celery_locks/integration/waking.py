"""Wakes parked messages: tasks that wait for a busy lock and occupy no worker slot meanwhile.

With ``on_conflict="park"`` the complete message is kept on the lock server, in the queue of its
lock (``lib/park.lua``, ``not_acquired.py``). When its turn comes, the server reserves a slot of the
lock for it, and a worker publishes it to its queue at the broker:

==============================================  ====================================================
a process dies ...                              then
==============================================  ====================================================
before the message is parked                    the broker delivers it again, with ``acks_late``
after it is parked, before it is acknowledged   the copy is parked again, which has no effect
before a woken message is published             another worker publishes it within seconds
after it is published, before that is noted     another worker publishes a copy, which does not run:
                                                the first one runs or has run
after it is woken and published                 as for any message of the broker; the slot of the
                                                lock is reserved for ``pending_ttl``
==============================================  ====================================================

With no worker alive nothing is lost and nothing runs; the first one that starts wakes what is due.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from kombu.exceptions import KombuError
from kombu.utils import json

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import ForeignData, LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.displacement import stop_displaced
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.kept_messages import LostMessageSearch
from celery_locks.integration.message_text import PUBLISH_WITHIN, headers_of, publish_message
from celery_locks.integration.periodic_thread import PeriodicThread
from celery_locks.integration.revoked_results import mark_revoked
from celery_locks.logs import Reports
from celery_locks.options import LockOptions
from celery_locks.printable_text import printable
from celery_locks.store.commands.parking import ParkCommands, ParkedMessage

logger = logging.getLogger("celery_locks")

# Seconds between two polls of a worker, on average. A process whose release wakes a message polls
# immediately.
POLL_EVERY = 2.0


def _headers_of(app: Any, parked: ParkedMessage) -> dict[str, Any]:
    return headers_of(app, json.loads(parked.message))


def _emit_woken(app: Any, parked: ParkedMessage) -> None:
    headers, name = _headers_of(app, parked), ""
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
        """Publish or discard what is due on all shards; return how many. Never raises."""
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
                locks.perform(commands.confirm(root, done, self._kept_among(done)))
            woken += len(done)
            self._wake_and_displace(locks, commands, root, due.names)
            is_next_due = due.next_in is not None and due.next_in <= 0
            if gives_up or (not is_next_due and not due.names):
                return woken

    def _kept_among(self, messages: list[ParkedMessage]) -> set[str]:
        """Return the tokens of messages that are kept until they start (``kept_messages.py``)."""
        return {it.token for it in messages if not it.superseded_by and self._is_kept(it)}

    def _is_kept(self, parked: ParkedMessage) -> bool:
        options = self._options_of(parked)
        return bool(options and options.keep_message)

    def _options_of(self, parked: ParkedMessage) -> LockOptions | None:
        """Return the lock options of its call; None for a plain task, or with a wrong header."""
        headers = _headers_of(self._app, parked)
        try:
            options = LockHeader.read(headers).options
            found: LockOptions = self._app.tasks[headers["task"]].lock_options(options)
        except (LockUsageError, AttributeError):
            return None  # its run reports a wrong header
        return found

    def _knows_task(self, parked: ParkedMessage) -> bool:
        """Return True if a worker of this app may run it: another app may have another broker."""
        try:
            return _headers_of(self._app, parked).get("task") in self._app.tasks
        except KombuError:
            return False  # of Celery's protocol 1, in a content type that this app does not accept
        except (ValueError, KeyError, TypeError, AttributeError):
            return True  # nobody can read it: publishing it fails, which is logged

    def _wake_and_displace(
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
                self._wake_and_displace(locks, commands, root, [name])

    def _handle_all(self, messages: list[ParkedMessage]) -> tuple[list[ParkedMessage], bool]:
        """Handle each: return those that are done, and True if the broker seems to be away.

        A message that cannot be published must not hold up others; but without a broker each try
        may take seconds, and the caller may be a task that ends.
        """
        done, give_up_at = [], now() + PUBLISH_WITHIN
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
                options = self._options_of(parked)
                wake_queue = options.wake_queue if options else None
                publish_message(self._app, parked.message, wake_queue)
                _emit_woken(self._app, parked)
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
        """End a message that a newer one replaced: its result is REVOKED, and no copy runs."""
        headers, locks = _headers_of(self._app, parked), locks_of(self._app)
        name, task_id = LockHeader.read(headers).queued, headers["id"]
        locks.perform(locks.commands.supersede(name, task_id, locks.settings.done_ttl))
        mark_revoked(self._app, parked.message, f"superseded by {parked.superseded_by}")


_wakers: WeakKeyDictionary[Any, Waker] = WeakKeyDictionary()
_polling: dict[int, PeriodicThread] = {}


def waker_of(app: Any) -> Waker:
    """Return the waker of an app, the same each time."""
    found = _wakers.get(app)
    if found is None:
        found = _wakers[app] = Waker(app)
    return found


def start_polling(sender: Any = None, **_: Any) -> None:
    """Begin to wake parked messages, and to search for lost ones: a worker is ready."""
    app = sender.app
    with suppress(LockUsageError):
        waker = waker_of(app)
        search = LostMessageSearch(app, locks_of(app).settings.recover_after)

        def poll() -> None:
            waker.wake_due()
            search.run_if_due()

        _polling[id(app)] = polling = PeriodicThread("celery-locks waker", poll, POLL_EVERY)
        polling.start()
        renewer.call_on_woke(_poll_now)


def _poll_now() -> None:
    for polling in list(_polling.values()):
        polling.run_now()


def stop_polling(sender: Any = None, **_: Any) -> None:
    """Wake no more parked messages, of any app: the worker shuts down."""
    for polling in list(_polling.values()):
        polling.stop()
    _polling.clear()
