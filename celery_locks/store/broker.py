"""The only command for a Redis broker: postpone the redelivery of an unacknowledged message."""

from __future__ import annotations

import time
from typing import Any

from celery_locks.store.effects import Call
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import Command

_ZADD = Command("ZADD")


class BrokerStore:
    """A Redis broker, reached with the address and credentials of kombu's client."""

    def __init__(self, client: Any) -> None:
        self._store = RedisStore.from_client(client, "broker")

    def keep_invisible(self, index_key: str, tag: str, budget: float) -> None:
        """Set the delivery time of a message to now, if it is still unacknowledged."""
        args = ("XX", str(time.time()), tag)
        self._store.perform(Call(_ZADD, index_key, args, bool, budget))
