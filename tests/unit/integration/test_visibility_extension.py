"""The message of a running task on a broker that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.errors import LockUnavailable
from celery_locks.integration.visibility_extension import UnackedMessage
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock


class SilentBroker:
    def keep_invisible(self, *args: Any) -> None:
        raise LockUnavailable("away")


@pytest.fixture
def message() -> UnackedMessage:
    message = UnackedMessage.__new__(UnackedMessage)
    message._request = SimpleNamespace(acknowledged=False)
    message._broker = SilentBroker()
    message._key, message._tag, message.interval = "unacked_index", "tag", 10.0
    return message


def test_silent_broker_is_tried_each_second_and_logged_once_a_minute(
    message: UnackedMessage,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is one such message for each running task."""
    for _ in range(61):
        message.keep_invisible()
        assert message.due == pytest.approx(virtual_clock() + 1)
        virtual_clock.advance(1)
    line = "a running task's message could not be kept invisible: away"
    assert [record.getMessage() for record in caplog.records] == [
        line,
        f"{line} (59 more of these since the last line)",
    ]
