"""Skips are told apart from whatever else a task may return."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_locks import is_skipped, without_skipped
from celery_locks.types import Holder

SKIPS = [
    {"skipped": True, "lock": "a", "holder": Holder(token="t", task_id="x").as_dict()},
    {"skipped": True, "lock": "a", "holder": None},
    {"skipped": True, "reason": "already_done"},
    {"skipped": True, "reason": "already_begun"},
]
OTHERS = [
    None,
    0,
    [],
    "skipped",
    {"skipped": True},
    {"skipped": False, "lock": "a", "holder": None},
    {"skipped": True, "reason": "the user's own"},
    {"skipped": True, "lock": "a", "holder": "bob"},
    {"skipped": 3, "lock": "a", "holder": None},
]


@pytest.mark.parametrize("value", SKIPS)
def test_a_skip_is_known_also_after_its_way_through_a_backend(value: Any) -> None:
    assert is_skipped(value)
    assert is_skipped(json.loads(json.dumps(value)))


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_a_result_of_the_users_own_is_none(value: Any) -> None:
    """It would vanish from the body of a chord."""
    assert not is_skipped(value)


def test_without_skipped_keeps_the_rest_in_order() -> None:
    assert without_skipped([1, *SKIPS, *OTHERS, 2]) == [1, *OTHERS, 2]
