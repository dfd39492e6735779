"""The messages that kombu keeps in a Redis broker: queued and unacknowledged ones.

They are read in small steps, so that the server stays responsive. A message that a worker has
fetched is in a hash (``unacked``, by delivery tag), and the time of its delivery in an index
(``unacked_index``). When that time is a visibility timeout ago, kombu restores the message to its
queue.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import OperationalError

from celery_locks.integration.internals import RedisChannel
from celery_locks.store import broker

SOCKET_TIMEOUT = 10.0
_LONGEST = 60.0  # seconds for one search; if it takes longer, the queues are too long


class Inconclusive(Exception):
    """The broker cannot be read completely; the message says why."""


@dataclass(frozen=True, slots=True)
class Unacked:
    """A message that some worker has fetched and not acknowledged.

    ``delivered_at`` is refreshed while a locked task with ``acks_late`` runs.
    """

    tag: str
    entry: bytes
    delivered_at: float
    visibility_timeout: float

    @property
    def returns_in(self) -> float:
        """Seconds until kombu may restore it."""
        return max(0.0, self.delivered_at + self.visibility_timeout - time.time())


def expect_one_server(connection: Any) -> None:
    if len(connection.alt) > 1 and connection.transport_cls != "sentinel":
        raise Inconclusive("broker_url names several servers, and a message may be on another")


def ids_in(message: Any) -> Iterator[str]:
    """Yield the task id from both fields of Celery; messages of protocol 1 have no headers."""
    for part, field in (("headers", "id"), ("properties", "correlation_id")):
        if task_id := (message.get(part) or {}).get(field):
            yield task_id


@contextmanager
def open_broker(app: Any, timeout: float) -> Iterator[RedisBroker]:
    """Connect to the broker that the workers read from; raises Inconclusive if it cannot."""
    with app.connection_for_read(connect_timeout=timeout) as connection:
        if (kind := connection.transport.driver_type) != "redis":
            raise Inconclusive(f"a broker of type {kind!r} cannot be asked")
        errors = (OperationalError, *connection.connection_errors, *connection.channel_errors)
        try:
            connection.transport_options.setdefault("socket_timeout", SOCKET_TIMEOUT)
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            expect_one_server(connection)
            messages = RedisBroker(connection.channel())
            messages.expect_acknowledging()
            yield messages
        except errors as error:
            raise Inconclusive(f"the broker gives no answer: {error}") from error


class RedisBroker:
    """The messages of a Redis broker, read over a channel of kombu."""

    def __init__(self, channel: Any, event_exchange: str = "") -> None:
        self._channel = RedisChannel(channel)
        self._client = self._channel.make_client()
        self._event_exchange = event_exchange
        self._ends = time.monotonic() + _LONGEST

    def expect_acknowledging(self, unread: Iterable[str] = ()) -> None:
        """Raise if messages are consumed without acknowledging; ``unread`` names such queues."""
        names = list(unread)
        if names or not self._channel.acknowledges:
            what = f"queue {names[0]!r} is" if names else "the queues are"
            raise Inconclusive(
                f"{what} read without acknowledging, so messages in workers cannot be seen"
            )

    def messages(self, queues: Iterable[str]) -> Iterator[Any]:
        """Yield all messages in the order in which one moves: from a list to the unacknowledged."""
        all_queues = {*queues, *self._bound_queues()}
        for key in sorted(
            {name for queue in all_queues for name in self._channel.list_names(queue)}
        ):
            yield from self._read_list(key)
        yield from (json.loads(entry)[0] for _, entry in self._unacked())

    def unacked(self, task_ids: Iterable[str]) -> dict[str, list[Unacked]]:
        """Return the unacknowledged messages of these tasks; usually one each, or none."""
        wanted, found = set(task_ids), dict[str, list[Unacked]]()
        for tag, entry in dict(self._unacked_of(wanted)).items():
            if (delivered_at := self._delivered_at(tag)) is None:
                continue  # acknowledged since
            timeout = self._channel.visibility_timeout
            for task_id in wanted.intersection(ids_in(json.loads(entry)[0])):
                message = Unacked(tag, entry, delivered_at, timeout)
                found.setdefault(task_id, []).append(message)
        return found

    def _unacked_of(self, task_ids: set[str]) -> Iterator[tuple[str, bytes]]:
        for tag, entry in self._unacked():
            if task_ids.intersection(ids_in(json.loads(entry)[0])):
                yield tag, entry

    def restore(self, message: Unacked) -> list[str]:
        """Restore a message to its queues, unless it changed since it was read.

        Returns the names of the queues; [] if it changed. The next free worker gets the message,
        as when kombu restores it. Atomic: kombu watches the same hash, so only one of them moves
        it.
        """
        payload, exchange, routing_key = json.loads(message.entry)
        queues = self._queues_of(exchange, routing_key)
        if not queues:
            raise Inconclusive(f"no queue is bound to {routing_key!r} of exchange {exchange!r}")
        names = [self._channel.unacked_key, self._channel.unacked_index_key]
        names += [self._channel.list_name(queue, payload) for queue in queues]
        keys = [self._key("EVAL", name) for name in names]
        args = (message.tag, message.entry, repr(message.delivered_at), _redelivered(payload))
        try:
            moved = broker.restore(self._client, keys, args)
        except self._channel.errors as error:
            raise Inconclusive(f"the broker gives no answer: {error}") from error
        return queues if moved else []

    def _queues_of(self, exchange: str, routing_key: str) -> list[str]:
        """Look up the bindings in the broker; a row of a topic exchange has a pattern."""
        if not exchange:
            return [routing_key] if routing_key else []
        return sorted(
            queue
            for key, pattern, queue in self._channel.bindings(exchange)
            if key == routing_key or (pattern and re.match(pattern, routing_key))
        )

    def _delivered_at(self, tag: str) -> float | None:
        key = self._key("ZSCORE", self._channel.unacked_index_key)
        return broker.delivery_time(self._client, key, tag)

    def _read_list(self, name: str) -> Iterator[Any]:
        for chunk in broker.read_list(self._client, self._key("LRANGE", name)):
            self._check_time()
            yield from map(json.loads, chunk)

    def _unacked(self) -> Iterator[tuple[str, bytes]]:
        """Yield delivery tags with their entries: [message, exchange, routing key] as JSON."""
        key = self._key("HSCAN", self._channel.unacked_key)
        for chunk in broker.read_hash(self._client, key):
            self._check_time()
            yield from chunk

    def _bound_queues(self) -> Iterator[str]:
        """Yield every declared queue; one without consumers is known only by its binding."""
        for exchanges in broker.find_keys(self._client, self._channel.binding_prefix):
            self._check_time()
            for exchange in exchanges:
                if not exchange.endswith(".pidbox") and exchange != self._event_exchange:
                    yield from (row[-1] for row in self._channel.bindings(exchange))

    def _key(self, command: str, key: str) -> str:
        return self._channel.key(self._client, command, key)

    def _check_time(self) -> None:
        if time.monotonic() > self._ends:
            raise Inconclusive(f"the queues are too long to be read in {_LONGEST:g} s")


def _redelivered(payload: Any) -> str:
    """Return the message with the mark that kombu sets on a restored one; other tasks need it."""
    for part in (payload.get("headers"), payload.get("properties", {}).get("delivery_info")):
        if isinstance(part, dict):
            part["redelivered"] = True
    return json.dumps(payload)
