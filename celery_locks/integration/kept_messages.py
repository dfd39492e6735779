"""Messages that are published again if the broker loses them (``keep_message=True``).

A Redis broker can lose a message: kombu pops it for a connection that dies before it is recorded as
unacknowledged. The publisher of a message with a reservation keeps a copy on the lock server until
the message starts. One worker at a time searches from time to time for messages that are kept, but
in no queue, unacknowledged nowhere and with no worker (``broker_search.py``: confirmed twice), and
publishes them again.

========================================  =========================================================
a process dies ...                        then
========================================  =========================================================
before the message is kept                the call has not returned; nothing will run
after it is kept, before it is sent       the search finds it lost and publishes it
while it takes a lost message to publish  the next search finds it again
========================================  =========================================================

If the search is wrong, because a worker that had the message was cut off, two copies exist. They
never run at the same time, and the later one is dropped if the other has ended: as any copy.
A message that has started is not kept: from then on ``acks_late`` decides.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from celery_locks import events
from celery_locks.clock import now
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.integration.message_text import publish_message
from celery_locks.integration.periodic_thread import PeriodicThread
from celery_locks.logs import Reports
from celery_locks.printable_text import printable
from celery_locks.store.commands.kept_messages import KeptCommands, KeptMessage

logger = logging.getLogger("celery_locks")

# Longer than a search takes; a worker that dies in one leaves the next to another after this.
_SEARCH_WITHIN = 300.0
# A search reads all queues: it may take at most this share of the time.
_SHARE = 20


class LostMessageSearch:
    """Publishes the kept messages of an app again that the broker has lost."""

    def __init__(self, app: Any, every: float) -> None:
        self._app = app
        self._every = every
        self._reports = Reports()

    def run(self) -> int:
        """Search unless another worker does; return how many were published. Never raises."""
        try:
            locks = locks_of(self._app)
            commands = KeptCommands(locks.commands)
            if not locks.perform(commands.begin_search(_SEARCH_WITHIN)):
                return 0
            began = now()
            try:
                return self._search(locks, commands)
            finally:
                pause = max(self._every, _SHARE * (now() - began))
                locks.perform(commands.end_search(pause))
        except LockUnavailable as error:
            self._reports.warning("lost messages are not searched for now: %s", error)
        except Exception:  # noqa: BLE001 (the next search, or another worker, goes on)
            self._reports.failure("lost messages are not searched for now")
        return 0

    def _search(self, locks: AppLocks, commands: KeptCommands) -> int:
        kept = locks.run(commands.scan(self._every))
        kept = [it for it in kept if it.holder.task in self._app.tasks]
        lost = find_lost_messages(self._app, [it.holder for it in kept])
        if lost.trouble:
            self._reports.warning(
                "kept messages cannot all be searched for: %s", printable(lost.trouble)
            )
        return sum(
            self._recover(locks, commands, it) for it in kept if it.holder.task_id in lost.task_ids
        )

    def _recover(self, locks: AppLocks, commands: KeptCommands, kept: KeptMessage) -> bool:
        text = locks.perform(commands.recover(kept))
        if not text:
            return False  # it has started, or another worker was faster
        try:
            publish_message(self._app, text)
        except Exception as error:  # noqa: BLE001 (each transport has its own errors)
            self._reports.warning(
                "lost task %s cannot be published now, which is tried again: %s",
                printable(str(kept.holder.task_id)),
                printable(str(error)),
            )
            return False
        holder = kept.holder
        events.emit("recovered", kept.name, holder.token, task=holder.task, task_id=holder.task_id)
        return True


_threads: dict[int, PeriodicThread] = {}


def start_search(sender: Any = None, **_: Any) -> None:
    """Begin to search for lost messages: a worker is ready."""
    app = sender.app
    with suppress(LockUsageError):  # an app without a lock server keeps no messages
        every = locks_of(app).settings.recover_after
        search = LostMessageSearch(app, every)
        _threads[id(app)] = thread = PeriodicThread("celery-locks search", search.run, every)
        thread.start()


def stop_search(sender: Any = None, **_: Any) -> None:
    """Stop to search for lost messages: the worker shuts down."""
    for thread in list(_threads.values()):
        thread.stop()
    _threads.clear()
