"""The commands for a Redis broker: read its messages, restore one, postpone a redelivery.

kombu decides what the keys are (``integration/internals.py``). It gives the client too, which has
its own timeouts; only :class:`BrokerStore`, used in the background thread, has connections of ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from celery_locks.store.effects import Call
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import PlainCommand

_ZADD = PlainCommand("ZADD")
_STEP = 100  # entries per call, so that the server stays responsive

# restore: move a message from the unacknowledged ones into its queues, as kombu does.
# KEYS 1 unacked  2 unacked_index  3... the lists of its queues
# ARGV 1 delivery tag  2 the entry as it was read  3 the time of its delivery  4 the message
# returns 1 moved, 0 no longer there: acknowledged, restored by kombu, or delivered again since
_RESTORE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local delivered_at = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not delivered_at or tonumber(delivered_at) ~= tonumber(ARGV[3]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
for i = 3, #KEYS do redis.call('RPUSH', KEYS[i], ARGV[4]) end
return 1
"""


class BrokerStore:
    """A Redis broker, reached with the address and credentials of kombu's client."""

    def __init__(self, client: Any) -> None:
        self._store = RedisStore.from_client(client, "broker").store_for_thread()

    def keep_invisible(self, index_key: str, tag: str, budget: float) -> None:
        """Set the delivery time of a message to now, if it is still unacknowledged."""
        args = ("XX", str(time.time()), tag)
        self._store.perform(Call(_ZADD, index_key, (index_key,), args, bool, budget))


def read_list(client: Any, key: str) -> Iterator[list[bytes]]:
    """Read a queue in steps, from the end where new messages arrive: these hide no others."""
    start = 0
    while chunk := client.lrange(key, start, start + _STEP - 1):
        yield chunk
        start += len(chunk)


def read_hash(client: Any, key: str) -> Iterator[list[tuple[str, bytes]]]:
    """Read a hash in steps; an entry may come twice."""
    cursor: int | None = None
    while cursor != 0:
        cursor, chunk = client.hscan(key, cursor or 0, count=_STEP)
        yield [(field.decode(), value) for field, value in chunk.items()]


def find_keys(client: Any, prefix: str) -> Iterator[list[str]]:
    """Find in steps the keys that begin with ``prefix``, and yield the rest of their names."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    cursor: int | None = None
    while cursor != 0:
        cursor, keys = client.scan(cursor or 0, match=pattern, count=10 * _STEP)
        yield [key.decode().removeprefix(prefix) for key in keys]


def delivery_time(client: Any, key: str, tag: str) -> float | None:
    """Return when an unacknowledged message was delivered; None if it was acknowledged since."""
    score: float | None = client.zscore(key, tag)
    return score


def restore(client: Any, keys: Sequence[str], args: Sequence[Any]) -> bool:
    """Move an unacknowledged message into its queues, unless it changed; see ``_RESTORE``."""
    return bool(client.execute_command("EVAL", _RESTORE, len(keys), *keys, *args))
