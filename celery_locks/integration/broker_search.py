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

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks.integration.redis_broker import (
    SOCKET_TIMEOUT,
    InDoubt,
    RedisBroker,
    expect_one_server,
    ids_in,
)
from celery_locks.integration.worker_inspection import PATIENCE, MessageReport, inspect_messages
from celery_locks.policy import SENT_TO
from celery_locks.types import Holder

_LOOKS = 2
_PAUSE = 1.0  # seconds between the looks
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
class LostMessages:
    """The ids whose message is nowhere; ``trouble`` says why others could not be judged."""

    task_ids: frozenset[str] = frozenset()
    trouble: str = ""


Places = Mapping[str, Holder]


def find_lost_messages(
    app: Any, places: Iterable[Holder], timeout: float = PATIENCE
) -> LostMessages:
    """Which of these places in the queue have lost their message. An answer, never an error.

    The places must be older than a publish takes: one is taken before its message is sent.
    """
    by_id = {place.task_id: place for place in places if place.task_id}
    try:
        return _searched(app, by_id, timeout) if by_id else LostMessages()
    except InDoubt as doubt:
        return LostMessages(trouble=str(doubt))
    except Exception as error:  # noqa: BLE001 (every transport has its own errors)
        return LostMessages(trouble=f"the broker cannot be looked through: {error}")


def _searched(app: Any, places: Places, timeout: float) -> LostMessages:
    if app.conf.broker_read_url != app.conf.broker_write_url:
        raise InDoubt("the workers read from another broker than the app sends to")
    report = _stock(app, places, timeout)
    missing, trouble = _without(places, report), ""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0)
        with app.connection_for_write(connect_timeout=timeout) as connection:
            if connection.transport.driver_type == "redis":
                connection.transport_options.setdefault("socket_timeout", SOCKET_TIMEOUT)
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            missing, doubt = _not_in_broker(app, connection, missing, report)
        trouble = trouble or doubt
        if not missing:
            break
        # After the broker: one that left it before it was read is with a worker.
        report = _stock(app, missing, timeout)
        missing = _without(missing, report)
    return LostMessages(frozenset(missing), trouble)


def _without(places: Places, report: MessageReport) -> dict[str, Holder]:
    return {i: place for i, place in places.items() if i not in report.task_ids}


def _stock(app: Any, places: Places, timeout: float) -> MessageReport:
    report = inspect_messages(app, list(places), timeout)
    if report.trouble:
        raise InDoubt(report.trouble)
    return report


def _not_in_broker(
    app: Any, connection: Any, places: Places, report: MessageReport
) -> tuple[dict[str, Holder], str]:
    """The places whose message is not there, and why others may not be there either."""
    kind = connection.transport.driver_type
    if kind == "redis":
        return _not_in_redis(app, connection, places, report), ""
    if kind != "amqp":
        raise InDoubt(f"the messages of a broker of type {kind!r} cannot be looked at")
    routed = {i: place for i, place in places.items() if _is_certain(app, place, report)}
    if routed:
        _expect_empty(connection, [*_queues(app, routed, report), *_DELAYED], report)
    repeat_until_expired = len(places) - len(routed)
    return routed, _UNCERTAIN.format(repeat_until_expired) if repeat_until_expired else ""


# Which queues there are.


def _queues(app: Any, places: Places, report: MessageReport) -> set[str]:
    """Those that the app knows, that workers read from, and that the messages were sent to."""
    tasks = {place.task for place in places.values() if place.task}
    return {
        *(queue.name for queue in app.amqp.queues.values()),
        *(queue["name"] for queues in report.queues.values() for queue in queues),
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


def _not_in_redis(
    app: Any, connection: Any, places: Places, report: MessageReport
) -> dict[str, Holder]:
    expect_one_server(connection)
    redis = RedisBroker(connection.channel(), app.conf.event_exchange)
    unread = [q["name"] for queues in report.queues.values() for q in queues if q.get("no_ack")]
    redis.expect_acknowledging(unread)
    missing = dict(places)
    for message in redis.messages(_queues(app, places, report)):
        for task_id in ids_in(message):
            missing.pop(task_id, None)
        if not missing:
            break
    return missing


# AMQP.


def _is_certain(app: Any, place: Holder, report: MessageReport) -> bool:
    """Whether it is known where the message was sent, and workers show it if they have it."""
    if place.task in report.limited or not place.task or place.retries >= 0:
        return False
    if SENT_TO in place.extra:
        return place.extra[SENT_TO] is not None
    return _route(app, place.task) is not None


def _expect_empty(connection: Any, queues: Iterable[str], report: MessageReport) -> None:
    reading = [queue for queues in report.queues.values() for queue in queues]
    for queue in reading:
        if (queue.get("exchange") or {}).get("type") not in _KNOWN_EXCHANGES:
            raise InDoubt(f"the exchange of queue {queue['name']!r} may keep messages back")
    for name in queues:
        ready, readers = _counted(connection, name)
        answered = sum(queue["name"] == name for queue in reading)
        if ready:
            raise InDoubt(f"queue {name!r} has messages, which cannot be read without taking them")
        if readers > answered:
            raise InDoubt(f"{readers - answered} of {readers} readers of {name!r} do not answer")


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
