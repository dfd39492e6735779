"""Events of locks that a worker sends as Celery events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.integration.celery_events import EventSender


class AbsentBroker:
    def acquire(self, block: bool) -> Any:
        raise OSError("no broker")


def test_absent_broker_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The sender tries five times a second."""
    app = SimpleNamespace(amqp=SimpleNamespace(producer_pool=AbsentBroker()))
    sender = EventSender(app, "w1@shop")
    for _ in range(3):
        sender._waiting.append(("lock-acquired", {}))
        sender._send()
    assert caplog.messages == ["1 events about locks could not be sent: no broker"]
