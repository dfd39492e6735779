"""The values that all layers share: conflicts, infos, specs."""

import json
import pickle
from dataclasses import replace

import pytest

from celery_locks.types import Conflict, Holder, LockInfo, LockSpec


def test_spec_that_is_allowed() -> None:
    spec = LockSpec("a", 1, 5, 0, 0.5)
    assert (spec.ttl, spec.limit, spec.wait, spec.at_least) == (1, 5, 0, 0.5)
    assert LockSpec("a").wait is None


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
    fields = Conflict("a", (holder,), 1.5, 2).as_dict()
    assert token not in json.dumps(fields)
    again = Conflict.from_dict(fields).holders[0]
    assert (again.is_queued, again.is_kept) == (holder.is_queued, holder.is_kept)


def test_values_survive_pickling() -> None:
    value = Conflict("a", (Holder(extra={"x": 1}),), 1.0, 1)
    assert pickle.loads(pickle.dumps(value)) == value
