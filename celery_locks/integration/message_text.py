"""A message as a text that the lock server can keep, and its way back to the broker.

Celery makes the message; what it would send to the broker is written down instead, or as well:
body, headers, properties, routing, priority, and the queues to declare: by name, or as the caller
gave them if the app does not know them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from kombu import Connection, Exchange, Producer, Queue, binding, pools
from kombu.compression import compress, decompress
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils import json

from celery_locks.errors import LockUsageError

# Seconds for which a broker may confirm a message, and for which a failing publish is tried with
# other messages: somewhat less than PUBLISH_MS in poll_due.lua, after which another worker tries.
PUBLISH_WITHIN = 4.0
# Once more, on a new connection: a pooled one may be broken.
_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
# Options of a publish that say how to send, not what.
_HOW_TO_SEND = ("retry", "retry_policy", "timeout", "confirm_timeout")


class _Recorder(Producer):  # type: ignore[misc]
    """Writes down the message that Celery gives it instead of sending it."""

    text = ""

    def __init__(self, app: Any, connection: Connection) -> None:
        super().__init__(connection, auto_declare=False)
        self._app = app

    def publish(self, body: Any, **options: Any) -> None:
        if not self.text:  # else the event task-sent, which is sent with the same producer
            self.text = _text_of(self._app, body, options)


class _KeepingProducer:
    """Gives the text of the message to ``keep``, then sends it with the real producer."""

    def __init__(self, app: Any, producer: Producer, keep: Callable[[str], object]) -> None:
        self._app = app
        self._producer = producer
        self._keep = keep
        self._is_kept = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        if not self._is_kept:  # else the event task-sent
            self._keep(_text_of(self._app, body, options))
            self._is_kept = True
        return self._producer.publish(body, **options)


def _text_of(app: Any, body: Any, options: Mapping[str, Any]) -> str:
    message = {name: value for name, value in options.items() if name not in _HOW_TO_SEND}
    content_type, encoding, data = dumps(body, message.pop("serializer"))
    headers = dict(message.pop("headers") or {})
    if compression := message.pop("compression", None):
        data, headers["compression"] = compress(data, compression)
    if isinstance(data, bytes):
        data = {"base64": base64.b64encode(data).decode()}
    queues = [_queue_text(app, queue) for queue in message.pop("declare", None) or ()]
    exchange = message.pop("exchange", "")
    text: str = json.dumps(
        {
            "body": data,
            "content_type": content_type,
            "content_encoding": encoding,
            "headers": headers,
            "exchange": getattr(exchange, "name", exchange) or "",
            "queues": queues,
            **message,
        }
    )
    return text


def _queue_text(app: Any, queue: Queue) -> str | dict[str, Any]:
    if app.amqp.queues.get(queue.name) is queue:
        return str(queue.name)
    fields: dict[str, Any] = queue.as_dict(recurse=True)
    return fields


def _queue_of(app: Any, text: str | dict[str, Any]) -> Queue:
    if isinstance(text, str):
        try:
            return app.amqp.queues[text]
        except KeyError:
            raise LockUsageError(
                f"queue {text!r} is not in task_queues, and task_create_missing_queues is off"
            ) from None
    bindings = [
        binding(**{**each, "exchange": _exchange_of(each["exchange"])})
        for each in text["bindings"] or ()
    ]
    return Queue(**{**text, "exchange": _exchange_of(text["exchange"]), "bindings": bindings})


def _exchange_of(fields: Mapping[str, Any] | None) -> Exchange | None:
    return Exchange(**fields) if fields else None


def record_message(app: Any, send: Callable[..., Any]) -> tuple[str, Any]:
    """Return the message that ``send(producer=…)`` would send, as a text, and its result."""
    with app.connection_for_write() as connection:
        recorder = _Recorder(app, connection)
        result = send(producer=recorder)
        if not recorder.text:
            raise LockUsageError("the task's apply_async sent no message, so it cannot be parked")
        return recorder.text, result


@contextmanager
def keeping_producer(
    app: Any, options: Mapping[str, Any], keep: Callable[[str], object]
) -> Iterator[_KeepingProducer]:
    """Return the producer that these options of ``apply_async`` ask for, but it calls ``keep``.

    ``keep`` gets the message as a text before the message is sent.
    """
    given = options.get("producer")
    if given is None and options.get("connection") is not None:
        given = app.amqp.Producer(options["connection"], auto_declare=False)
    with app.producer_or_acquire(given) as producer:
        yield _KeepingProducer(app, producer, keep)


def body_of(message: Mapping[str, Any]) -> str | bytes:
    """Return the body of a recorded message as the broker gets it."""
    body: str | dict[str, str] = message["body"]
    return base64.b64decode(body["base64"]) if isinstance(body, dict) else body


def decode_body(app: Any, message: Mapping[str, Any]) -> Any:
    """Return the body of a recorded message as it was before its serialization."""
    body = body_of(message)
    if compression := message["headers"].get("compression"):
        body = decompress(body, compression)
    accepted = prepare_accept_content(app.conf.accept_content)
    return loads(body, message["content_type"], message["content_encoding"], accept=accepted)


def headers_of(app: Any, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a recorded message, with the task and its id.

    In protocol 1 (``task_protocol``) these two are in the body.
    """
    headers: dict[str, Any] = message["headers"]
    if "task" in headers:
        return headers
    body = decode_body(app, message)
    return {**headers, "task": body["task"], "id": body["id"]}


def publish_message(app: Any, text: str, to_queue: str | None = None) -> None:
    """Publish a recorded message; return when the broker has it, as far as it says so.

    It goes ``to_queue`` if that is given, and otherwise where Celery would have sent it.
    """
    message = json.loads(text)
    body, queues = body_of(message), message.pop("queues")
    del message["body"]
    if to_queue:
        queue, queues = _queue_of(app, to_queue), [to_queue]
        message |= {"exchange": queue.exchange.name, "routing_key": queue.routing_key}
    confirming = _confirming_connection(app)
    pool = app.producer_pool if confirming is None else pools.producers[confirming]
    options = {} if confirming is None else {"timeout": PUBLISH_WITHIN}
    with pool.acquire(block=True) as producer:
        declare = [_queue_of(app, queue) for queue in queues]
        producer.publish(
            body, declare=declare, retry=True, retry_policy=_RETRY, **options, **message
        )


def _confirming_connection(app: Any) -> Connection | None:
    """Return the connection whose pool waits for RabbitMQ's confirmation; else None.

    Without it a publish returns when the message is in the socket. Other transports wait for a
    reply anyway.
    """
    if app not in _confirming:
        connection = app.connection_for_write(transport_options={"confirm_publish": True})
        is_amqp = connection.transport.driver_name == "py-amqp"
        _confirming[app] = connection if is_amqp else None
    return _confirming[app]


# Only the keys of kombu's pools, never connected: they may be forked.
_confirming: WeakKeyDictionary[Any, Connection | None] = WeakKeyDictionary()
