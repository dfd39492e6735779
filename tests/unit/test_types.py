"""The values that all layers share: holders, conflicts, infos, specs."""

import json
import os
import pickle
from dataclasses import replace
from typing import Any

import pytest

from celery_locks.types import Conflict, Holder, LockInfo, LockSpec, this_process


def test_spec_that_is_allowed() -> None:
    spec = LockSpec("a", 1, 5, 0, 0.5)
    assert (spec.ttl, spec.limit, spec.wait, spec.at_least) == (1, 5, 0, 0.5)
    assert LockSpec("a").wait is None


def test_holder_as_dict_is_json_safe() -> None:
    holder = Holder(token="t", fence=3, task_id="id", pid=9, extra={"queue": "q"})
    said = json.loads(json.dumps(holder.as_dict()))
    assert said["task_id"] == "id"
    assert said["extra"] == {"queue": "q"}
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


def test_info_remaining_is_that_of_the_first_to_lapse() -> None:
    holders = (Holder(expires_at=15.0), Holder(expires_at=12.0))
    assert LockInfo("a", 2, holders, as_of=10.0).remaining == 2.0
    assert LockInfo("a", 2, holders, as_of=20.0).remaining == 0.0
    assert LockInfo("a", 2, ()).remaining == 0.0


def test_conflict_survives_json() -> None:
    """A result backend that speaks JSON must give back what was refused, and by whom."""
    holder = Holder(token="t", fence=3, task_id="id", task="x", retries=1, replaced=2, ttl=5.0)
    value = Conflict("a", (holder, Holder(extra={"x": 1})), 1.5, 2)
    again = Conflict.from_dict(json.loads(json.dumps(value.as_dict())))
    assert again == replace(value, holders=(holder._replace(token=""), value.holders[1]))


@pytest.mark.parametrize("token", ["0f3a", "qid-1", "q+id-1", "-0f3a"])
def test_conflict_in_a_result_has_no_token(token: str) -> None:
    """Many may read results, and a token is for operators; what kind of holder it is remains."""
    holder = Holder(token=token, task_id="id")
    said = Conflict("a", (holder,), 1.5, 2).as_dict()
    assert token not in json.dumps(said)
    again = Conflict.from_dict(said).holders[0]
    assert (again.is_queued, again.is_kept) == (holder.is_queued, holder.is_kept)


def test_attempt_grows_with_retries_and_replacements() -> None:
    said = [Holder(retries=0), Holder(retries=9), Holder(replaced=1), Holder(replaced=1, retries=1)]
    attempts = [holder.attempt for holder in said]
    assert attempts == sorted(set(attempts))


def test_values_survive_pickling() -> None:
    value = Conflict("a", (Holder(extra={"x": 1}),), 1.0, 1)
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    ("said", "renewals"),
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
def test_renewals_are_reckoned(said: dict[str, Any], renewals: int) -> None:
    """Who waits, a message in the queue and the rest of at_least renew nothing."""
    usual = {"fence": 7, "ttl": 30.0, "acquired_at": 1000.0}
    holder = Holder(**{**usual, **said})
    assert holder.renewals == holder.as_dict()["renewals"] == renewals


def test_holder_of_another_version_is_read() -> None:
    """Results of old and new workers meet in one backend."""
    said = {**Holder(token="t", pid=4).as_dict(), "a word of tomorrow": 1}
    assert Holder.from_dict(said) == Holder(token="t", pid=4)
    assert Holder.from_dict({"token": "t"}) == Holder(token="t")
