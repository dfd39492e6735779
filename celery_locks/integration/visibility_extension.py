"""Keep the message of a running task invisible on a Redis broker.

kombu redelivers an unacknowledged message after the visibility timeout. While a task with
``acks_late`` runs, the supervisor moves the delivery time of its message forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable
from celery_locks.integration.internals import RedisChannel
from celery_locks.printable_text import printable
from celery_locks.store.broker import BrokerStore

# The background thread of the job below.
BROKER_THREAD = "broker"
_FAILED = "a running task's message could not be kept invisible: %s"


class UnackedMessage:
    """The unacknowledged message of a running task on a Redis broker."""

    def __init__(self, request: Any) -> None:
        channel = RedisChannel(request.message.channel)
        self._request = request
        self._broker = _broker_of(request.message.channel)
        self._key = channel.key_prefix + channel.unacked_index_key
        self._tag = request.message.delivery_tag
        self.interval = max(0.2, channel.visibility_timeout / 3)
        self.due = now() + self.interval

    @classmethod
    def of(cls, request: Any) -> UnackedMessage | None:
        """Return the message of a request; None if the broker is not Redis."""
        channel = getattr(request.message, "channel", None)
        return cls(request) if RedisChannel.is_redis(channel) else None

    def keep_invisible(self) -> None:
        """Postpone the redelivery; called in the background thread. Never raises."""
        try:
            self._postpone()
        except Exception as error:  # noqa: BLE001 (the supervisor's other work must go on)
            self.due = now() + min(1.0, self.interval)
            if isinstance(error, LockUnavailable):
                renewer.reports.warning(_FAILED, printable(str(error)))
            else:
                renewer.reports.failure(_FAILED, printable(str(error)))

    def _postpone(self) -> None:
        self.due = math.inf if self._request.acknowledged else now() + self.interval
        if not self._request.acknowledged:
            self._broker.keep_invisible(self._key, self._tag, renewer.patience())


class VisibilityJob:
    """The background job that keeps the messages of the running tasks invisible.

    It has a thread of its own: a broker that does not answer must not delay the supervisor, which
    finds the locks to renew and to release.
    """

    def __init__(self, messages: Callable[[], list[UnackedMessage]]) -> None:
        self._messages = messages

    @property
    def due(self) -> float:
        return min((message.due for message in self._messages()), default=math.inf)

    def run(self) -> None:
        for message in self._messages():
            if message.due <= now():
                message.keep_invisible()


def _broker_of(channel: Any) -> BrokerStore:
    """Return the store of a channel, the same each time."""
    broker = getattr(channel, "_celery_locks_broker", None)
    if broker is None:
        broker = channel._celery_locks_broker = BrokerStore(channel.client)
    assert isinstance(broker, BrokerStore)
    return broker
