"""Is a task's message still anywhere? Looked for in the broker and with the workers; none is taken.

A place in the queue (``publishing.py``) outlives its message when the queue is purged or the
message lost. Only what is seen nowhere in two whole looks is said to be absent:

- Redis: every list of every queue that the app, a worker, a binding in the broker or the place
  itself names, and the messages that workers have not acknowledged; read in small steps.
- RabbitMQ and other AMQP: a message cannot be read without taking it. It is absent if all queues
  are empty, the readers of each have answered, and none of them has it.
- Other brokers: nothing can be said, so nothing is absent.

In both, the workers are asked too. Whatever cannot be read leaves everything in doubt. What nobody
can see from outside: a message that Redis has handed to a worker which then stood still, one with a
RabbitMQ worker that is shutting down, one that the caller sent over a connection of its own. If
such a one turns up after all, or a backup of the broker is restored, it runs as any message does:
the lock of the run still keeps it apart from others.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks.integration.roll_call import PATIENCE, Stock, take_stock
from celery_locks.model import Holder
from celery_locks.policy import SENT_TO

_LOOKS = 2
_PAUSE = 1.0  # seconds between the looks
_STEP = 100  # what the broker is asked for at once
_LONGEST = 60.0  # seconds for one look; then the queues are too long
_SOCKET_TIMEOUT = 10.0
_NOT_FOUND = 404
_ROUTE = ("queue", "exchange", "routing_key")
_KNOWN_EXCHANGES = ("direct", "topic", "fanout", "headers")
# Where Celery has RabbitMQ keep messages until they are due; 28 is the number of its levels.
_DELAYED = tuple(f"celery_delayed_{level}" for level in range(28))
_UNCERTAIN = (
    "{} cannot be looked for with AMQP, being a retry, of a task whose rate is limited, or sent to "
    "an exchange"
)


@dataclass(frozen=True, slots=True)
class Absent:
    """The ids whose message is nowhere; ``trouble`` says why others could not be judged."""

    task_ids: frozenset[str] = frozenset()
    trouble: str = ""


class _InDoubt(Exception):
    """Nothing can be said, for the reason given."""


Places = Mapping[str, Holder]


def absent(app: Any, places: Iterable[Holder], timeout: float = PATIENCE) -> Absent:
    """Which of these places in the queue have lost their message. An answer, never an error.

    The places must be older than a publish takes: one is taken before its message is sent.
    """
    by_id = {place.task_id: place for place in places if place.task_id}
    try:
        return _searched(app, by_id, timeout) if by_id else Absent()
    except _InDoubt as doubt:
        return Absent(trouble=str(doubt))
    except Exception as error:  # noqa: BLE001 (every transport has its own errors)
        return Absent(trouble=f"the broker cannot be looked through: {error}")


def _searched(app: Any, places: Places, timeout: float) -> Absent:
    if app.conf.broker_read_url != app.conf.broker_write_url:
        raise _InDoubt("the workers read from another broker than the app sends to")
    stock = _stock(app, places, timeout)
    missing, trouble = _without(places, stock), ""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0)
        with app.connection_for_write(connect_timeout=timeout) as connection:
            if connection.transport.driver_type == "redis":
                connection.transport_options.setdefault("socket_timeout", _SOCKET_TIMEOUT)
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            missing, doubt = _not_in_broker(app, connection, missing, stock)
        trouble = trouble or doubt
        if not missing:
            break
        # After the broker: one that left it before it was read is with a worker.
        stock = _stock(app, missing, timeout)
        missing = _without(missing, stock)
    return Absent(frozenset(missing), trouble)


def _without(places: Places, stock: Stock) -> dict[str, Holder]:
    return {i: place for i, place in places.items() if i not in stock.task_ids}


def _stock(app: Any, places: Places, timeout: float) -> Stock:
    stock = take_stock(app, list(places), timeout)
    if stock.trouble:
        raise _InDoubt(stock.trouble)
    return stock


def _not_in_broker(
    app: Any, connection: Any, places: Places, stock: Stock
) -> tuple[dict[str, Holder], str]:
    """The places whose message is not there, and why others may not be there either."""
    kind = connection.transport.driver_type
    if kind == "redis":
        return _not_in_redis(app, connection, places, stock), ""
    if kind != "amqp":
        raise _InDoubt(f"the messages of a broker of type {kind!r} cannot be looked at")
    routed = {i: place for i, place in places.items() if _is_certain(app, place, stock)}
    if routed:
        _expect_empty(connection, [*_queues(app, routed, stock), *_DELAYED], stock)
    doubtful = len(places) - len(routed)
    return routed, _UNCERTAIN.format(doubtful) if doubtful else ""


# Which queues there are.


def _queues(app: Any, places: Places, stock: Stock) -> set[str]:
    """Those that the app knows, that workers read from, and that the messages were sent to."""
    tasks = {place.task for place in places.values() if place.task}
    return {
        *(queue.name for queue in app.amqp.queues.values()),
        *(queue["name"] for queues in stock.queues.values() for queue in queues),
        *(name for task in tasks if (name := _route(app, task))),
        *(name for place in places.values() if (name := place.extra.get(SENT_TO))),
    }


def _route(app: Any, task_name: str) -> str | None:
    """The queue that the app's settings send this task to; None if an exchange decides it."""
    task = app.tasks.get(task_name)
    said = {word: getattr(task, word, None) for word in _ROUTE}
    route = app.amqp.router.route({k: v for k, v in said.items() if v is not None}, task_name)
    if route.get("exchange") or route.get("routing_key") or not route.get("queue"):
        return None
    return str(route["queue"].name)


# Redis.


def _not_in_redis(app: Any, connection: Any, places: Places, stock: Stock) -> dict[str, Holder]:
    if len(connection.alt) > 1 and connection.transport_cls != "sentinel":
        raise _InDoubt("broker_url names several servers, and a message may be on another")
    redis = _Redis(connection.channel(), app.conf.event_exchange)
    redis.expect_acknowledging(stock)
    missing = dict(places)
    for message in redis.messages(_queues(app, places, stock)):
        for task_id in _ids_in(message):
            missing.pop(task_id, None)
        if not missing:
            break
    return missing


def _ids_in(message: Any) -> Iterator[str]:
    """By either of the two that Celery writes; messages of the first protocol have no headers."""
    for part, word in (("headers", "id"), ("properties", "correlation_id")):
        if task_id := (message.get(part) or {}).get(word):
            yield task_id


class _Redis:
    """What kombu keeps in Redis, read in small steps so that nobody else is kept waiting."""

    def __init__(self, channel: Any, event_exchange: str) -> None:
        self._channel = channel
        self._client = channel._create_client()
        self._event_exchange = event_exchange
        self._ends = time.monotonic() + _LONGEST

    def expect_acknowledging(self, stock: Stock) -> None:
        unread = [q["name"] for queues in stock.queues.values() for q in queues if q.get("no_ack")]
        if unread or not self._channel.ack_emulation:
            what = f"queue {unread[0]!r} is" if unread else "the queues are"
            raise _InDoubt(f"{what} read without acknowledging, so what workers have is not seen")

    def messages(self, queues: Iterable[str]) -> Iterator[Any]:
        """In the order that a message moves: out of a list, to those not acknowledged."""
        keys = {
            self._channel._q_for_pri(queue, priority)
            for queue in {*queues, *self._bound_queues()}
            for priority in self._channel.priority_steps
        }
        for key in sorted(keys):
            yield from self._listed(key)
        yield from self._unacknowledged()

    def _listed(self, key: str) -> Iterator[Any]:
        """From the end that new ones come in at: those that come meanwhile hide none."""
        start = 0
        while True:
            self._check_time()
            chunk = self._client.lrange(self._key("LRANGE", key), start, start + _STEP - 1)
            yield from map(json.loads, chunk)
            if not chunk:
                return
            start += len(chunk)

    def _unacknowledged(self) -> Iterator[Any]:
        key, cursor = self._key("HSCAN", self._channel.unacked_key), 0
        while True:
            self._check_time()
            cursor, chunk = self._client.hscan(key, cursor, count=_STEP)
            yield from (json.loads(raw)[0] for raw in chunk.values())
            if not cursor:
                return

    def _bound_queues(self) -> Iterator[str]:
        """Every queue that anybody declared; one that nobody reads is known here only."""
        prefix = self._channel.global_keyprefix + self._channel.keyprefix_queue % ""
        pattern, cursor = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*", 0
        while True:
            self._check_time()
            cursor, keys = self._client.scan(cursor, match=pattern, count=10 * _STEP)
            for exchange in (key.decode().removeprefix(prefix) for key in keys):
                if not exchange.endswith(".pidbox") and exchange != self._event_exchange:
                    yield from (row[-1] for row in self._channel.get_table(exchange))
            if not cursor:
                return

    def _key(self, command: str, key: str) -> str:
        """kombu's client puts its prefix before the keys of some commands by itself."""
        if command in getattr(self._client, "PREFIXED_SIMPLE_COMMANDS", ()):
            return key
        return f"{self._channel.global_keyprefix}{key}"

    def _check_time(self) -> None:
        if time.monotonic() > self._ends:
            raise _InDoubt(f"the queues are too long to be read in {_LONGEST:g} s")


# AMQP.


def _is_certain(app: Any, place: Holder, stock: Stock) -> bool:
    """Whether it is known where the message was sent, and workers show it if they have it."""
    if place.task in stock.limited or not place.task or place.retries >= 0:
        return False
    if SENT_TO in place.extra:
        return place.extra[SENT_TO] is not None
    return _route(app, place.task) is not None


def _expect_empty(connection: Any, queues: Iterable[str], stock: Stock) -> None:
    reading = [queue for queues in stock.queues.values() for queue in queues]
    for queue in reading:
        if (queue.get("exchange") or {}).get("type") not in _KNOWN_EXCHANGES:
            raise _InDoubt(f"the exchange of queue {queue['name']!r} may keep messages back")
    for name in queues:
        ready, readers = _counted(connection, name)
        answered = sum(queue["name"] == name for queue in reading)
        if ready:
            raise _InDoubt(f"queue {name!r} has messages, which cannot be read without taking them")
        if readers > answered:
            raise _InDoubt(f"{readers - answered} of {readers} readers of {name!r} do not answer")


def _counted(connection: Any, queue: str) -> tuple[int, int]:
    """How many messages are ready and how many read; none and nobody where there is no queue."""
    channel = connection.channel()
    try:
        declared = channel.queue_declare(queue, passive=True)
    except connection.channel_errors as error:
        if getattr(error, "code", None) != _NOT_FOUND:
            raise
        return 0, 0
    channel.close()
    return declared.message_count, declared.consumer_count
