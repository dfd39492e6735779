"""The options of parked tasks: which are refused where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.options import LockOptions, checked, combined, refuse_idle


def options_of(**values: Any) -> LockOptions:
    words = checked({"key": "k", **values}, "here")
    options = combined({}, words)
    refuse_idle(words, options, "here")
    return options


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"by_priority": True}, "by_priority has no effect without on_conflict='park'"),
        ({"by_priority": "yes", "on_conflict": "park"}, "by_priority is 'yes'; write True"),
        (
            {"by_priority": True, "fair_by": "{tenant}", "on_conflict": "park"},
            "by_priority with fair_by: .* leave one of them out",
        ),
        ({"wake_queue": "woken"}, "wake_queue has no effect without on_conflict='park'"),
        ({"wake_queue": "", "on_conflict": "park"}, "wake_queue is ''; write the name of a queue"),
        ({"displace_after": 5, "on_conflict": "park"}, "displace_after has no effect without"),
        ({"displace_after": -1, "on_conflict": "cancel_running"}, "displace_after must be"),
    ],
)
def test_nonsense_about_parked_tasks_is_refused(values: dict[str, Any], why: str) -> None:
    """An option without effect hides a mistake until the day it matters."""
    with pytest.raises(LockUsageError, match=why):
        options_of(**values)


def test_options_of_parked_tasks() -> None:
    """All are off unless they are set."""
    assert options_of(on_conflict="park", by_priority=True).by_priority
    assert options_of(on_conflict="keep_latest", wake_queue="woken").wake_queue == "woken"
    assert options_of(on_conflict="cancel_running", displace_after=5).displace_after == 5
    default = options_of(on_conflict="park")
    assert (default.by_priority, default.wake_queue, default.displace_after) == (False, None, 0)
