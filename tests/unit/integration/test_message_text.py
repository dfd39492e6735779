"""A message as a text: what is written down is what the broker gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.utils import json

from celery_locks.errors import LockUsageError
from celery_locks.integration.message_text import (
    keeping_producer,
    publish_message,
    record_message,
)

QUEUE = "texts"  # the queues of this transport are those of the whole process


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("texts", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = QUEUE

    @app.task(name="add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    yield app
    app.close()


def sent(app: Celery, name: str = QUEUE) -> list[Any]:
    """Take the messages out of the queue."""
    found = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.amqp.queues[name])
        while queue.qsize():
            message = queue.get_nowait()
            message.ack()
            found.append(message)
        queue.close()
    return found


def test_published_text_is_the_message_that_celery_sends(app: Celery) -> None:
    """Whatever is lost on the way through the text would be lost for the task."""
    options = {"task_id": "one", "priority": 3, "expires": 60, "headers": {"own": "header"}}
    text, _ = record_message(app, app.tasks["add"].signature((1, 2), **options).apply_async)
    assert sent(app) == []
    publish_message(app, text)
    app.tasks["add"].apply_async((1, 2), **options)
    kept, direct = sent(app)
    volatile = ("expires", "origin")
    for message in (kept, direct):
        for name in volatile:
            message.headers.pop(name, None)
    assert kept.body == direct.body
    assert kept.headers == direct.headers
    assert kept.properties["priority"] == direct.properties["priority"] == 3


def test_message_is_published_to_another_queue(app: Celery) -> None:
    text, _ = record_message(app, app.tasks["add"].signature((1, 2), task_id="one").apply_async)
    publish_message(app, text, "woken-texts")
    assert sent(app) == []
    (message,) = sent(app, "woken-texts")
    assert message.headers["id"] == "one"


def test_queue_that_the_settings_do_not_know_is_refused(app: Celery) -> None:
    text, _ = record_message(app, app.tasks["add"].signature((1, 2)).apply_async)
    app.amqp.queues.create_missing = False
    with pytest.raises(LockUsageError, match="queue 'unknown' is not in task_queues"):
        publish_message(app, text, "unknown")


def test_keeping_producer_keeps_the_message_before_it_sends_it(app: Celery) -> None:
    """A process that dies in between must leave a copy."""
    queued_at_keep: list[int] = []
    texts: list[str] = []

    def keep(text: str) -> None:
        texts.append(text)
        queued_at_keep.append(len(sent(app)))

    with keeping_producer(app, {}, keep) as producer:
        app.tasks["add"].apply_async((1, 2), task_id="one", producer=producer)
    assert queued_at_keep == [0]
    [text], [message] = texts, sent(app)
    assert json.loads(text)["headers"]["id"] == message.headers["id"] == "one"


def test_message_that_cannot_be_kept_is_not_sent(app: Celery) -> None:
    """Without the lock server the publisher decides again, and must not send twice."""

    def keep(_: str) -> None:
        raise ConnectionError("no lock server")

    with keeping_producer(app, {}, keep) as producer:
        with pytest.raises(ConnectionError):
            app.tasks["add"].apply_async((1, 2), producer=producer)
    assert sent(app) == []


def test_keeping_producer_uses_the_connection_of_the_call(app: Celery) -> None:
    """The caller may publish with credentials of its own."""
    with app.connection_for_write() as connection:
        with keeping_producer(app, {"connection": connection}, lambda _: None) as producer:
            assert producer.connection is connection
