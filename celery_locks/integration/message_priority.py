"""The priority of a message as its broker understands it (``by_priority``).

Redis delivers the lowest number first and RabbitMQ the highest, as do the other transports of kombu
that know priorities. For all of them a message without a priority has 0: with Redis it comes before
those that have one, with the others after them.
"""

from __future__ import annotations

from typing import Any

from kombu.utils import json

HIGHEST = 255  # of AMQP; kombu's own transports know 0 to 9


def rank_of(app: Any, message: str) -> int:
    """Return the rank of a recorded message among others; a higher one comes first."""
    priority = json.loads(message).get("priority")
    if not isinstance(priority, int):
        return 0
    rank = min(max(priority, 0), HIGHEST)
    return -rank if _lowest_comes_first(app) else rank


def _lowest_comes_first(app: Any) -> bool:
    with app.connection_for_write() as connection:
        is_redis: bool = connection.transport.driver_type == "redis"
        return is_redis
