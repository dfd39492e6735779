"""Who holds a lock or waits for it, as others see it."""

import json
import os
from typing import Any

import pytest

from celery_locks.types import Holder, this_process


def test_holder_as_dict_is_json_safe() -> None:
    holder = Holder(token="t", fence=3, task_id="id", pid=9, extra={"queue": "q"})
    values = json.loads(json.dumps(holder.as_dict()))
    assert values["task_id"] == "id"
    assert values["extra"] == {"queue": "q"}
    assert "extra" not in Holder().as_dict()


def test_holder_about_leaves_out_what_is_empty() -> None:
    """It is stored with every lock: bytes that say nothing are not."""
    assert Holder().about() == "{}"
    assert json.loads(Holder(task="t", pid=4).about()) == {"task": "t", "pid": 4}


def test_holder_says_where_to_look() -> None:
    assert str(Holder(host="h", pid=4)) == "a process on h, pid 4"
    assert str(Holder(task_id="i", task="t", worker="w", pid=4)) == "task t[i] on w, pid 4"
    assert "unknown host" in str(Holder())


def test_this_process_is_this_one() -> None:
    assert this_process().pid == os.getpid()
    assert this_process().task_id is None


def test_attempt_grows_with_retries_and_replacements() -> None:
    ordered = [
        Holder(retries=0),
        Holder(retries=9),
        Holder(replaced=1),
        Holder(replaced=1, retries=1),
    ]
    attempts = [holder.attempt for holder in ordered]
    assert attempts == sorted(set(attempts))


@pytest.mark.parametrize(
    ("values", "renewals"),
    [
        ({"expires_at": 1030.0}, 0),
        ({"expires_at": 1040.02}, 1),
        ({"expires_at": 1130.4}, 10),
        ({"expires_at": 1001.0}, 0),  # a claim out of the queue
        ({"expires_at": 1130.0, "token": "-x"}, 0),
        ({"expires_at": 1130.0, "retries": -1}, 0),
        ({"expires_at": 1130.0, "fence": 0}, 0),
        ({"expires_at": 1130.0, "ttl": 0.0}, 0),
    ],
)
def test_renewals_are_estimated(values: dict[str, Any], renewals: int) -> None:
    """Who waits, a message in the queue and the rest of at_least renew nothing."""
    usual = {"fence": 7, "ttl": 30.0, "acquired_at": 1000.0}
    holder = Holder(**{**usual, **values})
    assert holder.renewals == holder.as_dict()["renewals"] == renewals


def test_holder_of_another_version_is_read() -> None:
    """Results of old and new workers meet in one backend."""
    values = {**Holder(token="t", pid=4).as_dict(), "a word of tomorrow": 1}
    assert Holder.from_dict(values) == Holder(token="t", pid=4)
    assert Holder.from_dict({"token": "t"}) == Holder(token="t")
