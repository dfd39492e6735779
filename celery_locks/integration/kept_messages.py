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
while it searches                         another worker searches after ``_CLAIM`` seconds
while it takes a lost message to publish  the next search finds it again
========================================  =========================================================

If the search is wrong, because a worker that had the message was cut off, two copies exist. They
never run at the same time, and the later one is dropped if the other has ended: as any copy.
A message that has started is not kept: from then on ``acks_late`` decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from celery_locks import events
from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.integration.message_text import publish_message
from celery_locks.logs import Reports
from celery_locks.printable_text import printable
from celery_locks.store.commands.kept_messages import KeptCommands, KeptMessage

T = TypeVar("T")

# A worker claims its search for this long, again and again while it searches.
_CLAIM = 15.0
# Longer than a search takes; one that hangs leaves the next to another worker after this.
_SEARCH_WITHIN = 300.0
# A search reads all queues and asks all workers: the pause after it is this many times as long.
_PAUSE = 4


class LostMessageSearch:
    """Publishes the kept messages of an app again that the broker has lost."""

    def __init__(self, app: Any, every: float) -> None:
        self._app = app
        self._every = every
        self._due = now() + every
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._pause = every
        self._reports = Reports()

    def run_if_due(self) -> None:
        """Search if it is time for it, unless another worker does. Never raises.

        A search may take many seconds, so it has a thread of its own; most find nothing to search
        for and need none.
        """
        if self._thread:
            self._guarded(self._extend_or_end)
        if self._thread or now() < self._due:
            return
        self._due = now() + self._every
        kept = self._guarded(self._begin)
        if kept:
            self._began = now()
            name, search = (
                "celery-locks search",
                partial(self._guarded, partial(self._search, kept)),
            )
            self._thread = threading.Thread(target=search, name=name, daemon=True)
            self._thread.start()

    def _guarded(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except LockUnavailable as error:
            self._reports.warning("lost messages are not searched for now: %s", error)
        except Exception:  # noqa: BLE001 (the next search, or another worker, goes on)
            self._reports.failure("lost messages are not searched for now")
        return None

    def _begin(self) -> list[KeptMessage]:
        """Return the messages to search for, if no other worker does."""
        locks = locks_of(self._app)
        commands = KeptCommands(locks.commands)
        if not locks.perform(commands.begin_search(self._every)):
            return []
        kept = locks.run(commands.scan(self._every))
        kept = [it for it in kept if it.holder.task in self._app.tasks]
        if kept:
            locks.perform(commands.postpone_search(_CLAIM))
        return kept

    def _extend_or_end(self) -> None:
        """Keep the search claimed while it goes on; afterwards let the next one begin in a while.

        One thread makes these calls, so that the last one counts.
        """
        assert self._thread
        seconds = _CLAIM
        if not self._thread.is_alive():
            self._thread, seconds = None, self._pause
        elif now() > self._began + _SEARCH_WITHIN:
            return
        locks = locks_of(self._app)
        locks.perform(KeptCommands(locks.commands).postpone_search(seconds))

    def _search(self, kept: list[KeptMessage]) -> None:
        locks = locks_of(self._app)
        commands = KeptCommands(locks.commands)
        try:
            lost = find_lost_messages(self._app, [it.holder for it in kept])
            if lost.trouble:
                self._reports.warning(
                    "kept messages cannot all be searched for: %s", printable(lost.trouble)
                )
            for message in kept:
                if message.holder.task_id in lost.task_ids:
                    self._recover(locks, commands, message)
        finally:
            self._pause = max(self._every, _PAUSE * (now() - self._began))

    def _recover(self, locks: AppLocks, commands: KeptCommands, kept: KeptMessage) -> None:
        text = locks.perform(commands.recover(kept))
        if not text:
            return  # it has started, or another worker was faster
        try:
            publish_message(self._app, text)
        except Exception as error:  # noqa: BLE001 (each transport has its own errors)
            self._reports.warning(
                "lost task %s cannot be published now, which is tried again: %s",
                printable(str(kept.holder.task_id)),
                printable(str(error)),
            )
            return
        holder = kept.holder
        events.emit("recovered", kept.name, holder.token, task=holder.task, task_id=holder.task_id)
