"""Search for lost messages, in the broker and in the workers, without consuming any message.

A reservation (``reservation.py``) outlives its message when the queue is purged or the message is
lost. A message counts as lost only if two complete searches do not find it:

- Redis: search every list of every queue that the app, a worker, a binding in the broker or the
  reservation names, and the unacknowledged messages. Read in small steps.
- RabbitMQ and other AMQP: a message cannot be read without consuming it. It is lost if all queues
  are empty, all consumers have replied, and none of them has it.
- Other brokers: the search is inconclusive, so no message counts as lost.

Both searches ask the workers too. If anything cannot be read, the whole search is inconclusive.
Some messages cannot be seen from outside: one that Redis delivered to a worker that then hung, one
in a RabbitMQ worker that is shutting down, one that the caller sent over its own connection. If
such a message appears later, or a backup of the broker is restored, it runs like any message: the
lock of the run still excludes others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks.integration.broker_messages import (
    SOCKET_TIMEOUT,
    Inconclusive,
    RedisBroker,
    expect_one_server,
    ids_in,
)
from celery_locks.integration.worker_inspection import PATIENCE, MessageReport, inspect_messages
from celery_locks.policy import SENT_TO
from celery_locks.types import Holder

_SEARCHES = 2
_PAUSE = 1.0  # seconds between the searches
_NOT_FOUND = 404
_ROUTE = ("queue", "exchange", "routing_key")
_KNOWN_EXCHANGES = ("direct", "topic", "fanout", "headers")
# The queues in which Celery delays messages on RabbitMQ; it has 28 levels of them.
_DELAYED = tuple(f"celery_delayed_{level}" for level in range(28))
_UNCERTAIN = (
    "{} cannot be searched for with AMQP: a retry, a task with a rate limit, or a message that was "
    "sent to an exchange"
)


@dataclass(frozen=True, slots=True)
class LostMessages:
    """The ids of tasks whose message is lost; ``trouble`` says why the rest is inconclusive."""

    task_ids: frozenset[str] = frozenset()
    trouble: str = ""


Reservations = Mapping[str, Holder]


def find_lost_messages(
    app: Any, reservations: Iterable[Holder], timeout: float = PATIENCE
) -> LostMessages:
    """Find the reservations whose message is lost. Never raises.

    The reservations must be older than a publish takes: each is made before its message is sent.
    """
    by_id = {
        reservation.task_id: reservation for reservation in reservations if reservation.task_id
    }
    try:
        return _search(app, by_id, timeout) if by_id else LostMessages()
    except Inconclusive as reason:
        return LostMessages(trouble=str(reason))
    except Exception as error:  # noqa: BLE001 (every transport has its own errors)
        return LostMessages(trouble=f"the broker cannot be searched: {error}")


def _search(app: Any, reservations: Reservations, timeout: float) -> LostMessages:
    if app.conf.broker_read_url != app.conf.broker_write_url:
        raise Inconclusive("the workers read from another broker than the app sends to")
    report = _inspect(app, reservations, timeout)
    missing, trouble = _without(reservations, report), ""
    for search in range(_SEARCHES):
        time.sleep(_PAUSE if search else 0)
        with app.connection_for_write(connect_timeout=timeout) as connection:
            if connection.transport.driver_type == "redis":
                connection.transport_options.setdefault("socket_timeout", SOCKET_TIMEOUT)
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            missing, uncertain = _not_in_broker(app, connection, missing, report)
        trouble = trouble or uncertain
        if not missing:
            break
        # After the broker: a message that left it before it was read is in a worker.
        report = _inspect(app, missing, timeout)
        missing = _without(missing, report)
    return LostMessages(frozenset(missing), trouble)


def _without(reservations: Reservations, report: MessageReport) -> dict[str, Holder]:
    return {i: holder for i, holder in reservations.items() if i not in report.task_ids}


def _inspect(app: Any, reservations: Reservations, timeout: float) -> MessageReport:
    report = inspect_messages(app, list(reservations), timeout)
    if report.trouble:
        raise Inconclusive(report.trouble)
    return report


def _not_in_broker(
    app: Any, connection: Any, reservations: Reservations, report: MessageReport
) -> tuple[dict[str, Holder], str]:
    """Return the reservations without a message, and why the rest is uncertain."""
    kind = connection.transport.driver_type
    if kind == "redis":
        return _not_in_redis(app, connection, reservations, report), ""
    if kind != "amqp":
        raise Inconclusive(f"the messages of a broker of type {kind!r} cannot be read")
    routed = {i: holder for i, holder in reservations.items() if _is_certain(app, holder, report)}
    if routed:
        _expect_empty(connection, [*_queues(app, routed, report), *_DELAYED], report)
    uncertain = len(reservations) - len(routed)
    return routed, _UNCERTAIN.format(uncertain) if uncertain else ""


# Which queues there are.


def _queues(app: Any, reservations: Reservations, report: MessageReport) -> set[str]:
    """Those that the app knows, that workers read from, and that the messages were sent to."""
    tasks = {holder.task for holder in reservations.values() if holder.task}
    return {
        *(queue.name for queue in app.amqp.queues.values()),
        *(queue["name"] for queues in report.queues.values() for queue in queues),
        *(name for task in tasks if (name := _route(app, task))),
        *(name for task in tasks if (name := _wake_queue(app, task))),
        *(name for holder in reservations.values() if (name := holder.extra.get(SENT_TO))),
    }


def _wake_queue(app: Any, task_name: str) -> str | None:
    """Return the queue to which a parked message of this task goes when its turn comes."""
    task = app.tasks.get(task_name)
    return task.lock_options().wake_queue if hasattr(task, "lock_options") else None


def _route(app: Any, task_name: str) -> str | None:
    """Return the queue that the app's settings route this task to; None if an exchange decides."""
    task = app.tasks.get(task_name)
    options = {option: getattr(task, option, None) for option in _ROUTE}
    route = app.amqp.router.route({k: v for k, v in options.items() if v is not None}, task_name)
    if route.get("exchange") or route.get("routing_key") or not route.get("queue"):
        return None
    return str(route["queue"].name)


# Redis.


def _not_in_redis(
    app: Any, connection: Any, reservations: Reservations, report: MessageReport
) -> dict[str, Holder]:
    expect_one_server(connection)
    redis = RedisBroker(connection.channel(), app.conf.event_exchange)
    unread = [q["name"] for queues in report.queues.values() for q in queues if q.get("no_ack")]
    redis.expect_acknowledging(unread)
    missing = dict(reservations)
    for message in redis.messages(_queues(app, reservations, report)):
        for task_id in ids_in(message):
            missing.pop(task_id, None)
        if not missing:
            break
    return missing


# AMQP.


def _is_certain(app: Any, holder: Holder, report: MessageReport) -> bool:
    """Whether it is known where the message was sent, and workers report it if they have it."""
    if holder.task in report.limited or not holder.task or holder.retries >= 0:
        return False
    if SENT_TO in holder.extra:
        return holder.extra[SENT_TO] is not None
    return _route(app, holder.task) is not None


def _expect_empty(connection: Any, queues: Iterable[str], report: MessageReport) -> None:
    reading = [queue for queues in report.queues.values() for queue in queues]
    for queue in reading:
        if (queue.get("exchange") or {}).get("type") not in _KNOWN_EXCHANGES:
            raise Inconclusive(f"the exchange of queue {queue['name']!r} may delay messages")
    for name in queues:
        ready, readers = _counts(connection, name)
        replied = sum(queue["name"] == name for queue in reading)
        if ready:
            raise Inconclusive(
                f"queue {name!r} has messages, which cannot be read without consuming them"
            )
        if readers > replied:
            raise Inconclusive(f"{readers - replied} of {readers} readers of {name!r} do not reply")


def _counts(connection: Any, queue: str) -> tuple[int, int]:
    """Count the ready messages and the consumers of a queue; (0, 0) if it does not exist."""
    channel = connection.channel()
    try:
        declared = channel.queue_declare(queue, passive=True)
    except connection.channel_errors as error:
        if getattr(error, "code", None) != _NOT_FOUND:
            raise
        return 0, 0
    channel.close()
    return declared.message_count, declared.consumer_count
