"""Patterns come from anybody who may read: they match exactly, and none takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_locks.admin import SORTS, matcher, wanted
from celery_locks.types import Holder, LockInfo


@settings(deadline=None)
@given(glob=st.text("ab*?[.\n", max_size=8), name=st.text("ab[.\n", max_size=10))
def test_matcher_matches_like_a_plain_regular_expression(glob: str, name: str) -> None:
    plain = "".join({"*": ".*", "?": "."}.get(c) or re.escape(c) for c in glob)
    assert matcher(glob)(name) is (re.fullmatch(plain, name, re.DOTALL) is not None)


@pytest.mark.parametrize("glob", ["*a" * 250 + "b", "*" * 1000 + "b", "*?" * 400 + "b"])
def test_matcher_is_fast(glob: str) -> None:
    """As a regular expression, one such pattern would block the process for years."""
    began = time.process_time()
    is_match = matcher(glob)
    assert not any(is_match("a" * 512) for _ in range(20))
    assert time.process_time() - began < 5


def test_wanted_and_sorts_work_on_a_list() -> None:
    locks = [
        LockInfo("b", 1, (Holder(acquired_at=1.0, worker="w"),)),
        LockInfo(
            "a", 1, (Holder(acquired_at=2.0),), (Holder(acquired_at=5.0), Holder(acquired_at=6.0))
        ),
        LockInfo("c", 1, (), (Holder(acquired_at=4.0, task_id="job-7"),)),
    ]
    assert [lock.name for lock in locks if wanted(worker="w")(lock)] == ["b"]
    assert [lock.name for lock in locks if wanted(search="*job-7*")(lock)] == ["c"]
    assert [lock.name for lock in locks if wanted(search="a")(lock)] == ["a"]
    assert {by: "".join(x.name for x in sorted(locks, key=key)) for by, key in SORTS.items()} == {
        "name": "abc",
        "held": "bac",
        "remaining": "bac",
        "waiting": "cab",
    }
