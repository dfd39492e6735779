"""Patterns come from anybody who may read: they match exactly, and none takes long."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_locks import Locks, LockUsageError, admin
from celery_locks.admin import SORTS, matcher, wanted
from celery_locks.types import Holder, LockInfo
from tests.support.held_locks import take


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


@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("a*", "abc", True),
        ("a*", "ba", False),
        ("a?c", "abc", True),
        ("job[*]", "job[1]", True),
        ("job[1]", "job1", False),
        ("*", "two\nlines", True),
        (".*", "abc", False),
    ],
)
def test_glob_knows_star_and_question_mark_only(glob: str, name: str, fits: bool) -> None:
    """The default name of a lock is task[id]: brackets must mean themselves."""
    assert admin.matcher(glob)(name) is fits


def test_list_filters(locks: Locks) -> None:
    take(locks, "a1", task="mail", worker="w1", task_id="1")
    take(locks, "a2", task="bill", worker="w2", task_id="2")
    take(locks, "b1", task="bill", task_id="3", retries=-1)
    take(locks, "a1", "waiter", task="bill", worker="w2", task_id="4", alive=60)

    def names(**filters: Any) -> set[str]:
        return {lock.name for lock in admin.list_locks(locks, **filters)}

    assert names() == {"a1", "a2", "b1"}
    assert names(glob="a*") == {"a1", "a2"}
    assert names(task="mail") == {"a1"}
    assert names(task="b*") == {"a1", "a2", "b1"}
    assert names(worker="w2") == {"a1", "a2"}
    assert names(worker="w2", task="mail") == set()
    assert names(state="waiting") == {"a1"}
    assert names(state="queued") == {"b1"}
    assert names(state="held") == {"a1", "a2"}


def test_list_refuses_an_unknown_state_at_once(locks: Locks) -> None:
    with pytest.raises(LockUsageError, match="'held' or 'waiting' or 'queued'"):
        admin.list_locks(locks, state="stuck")  # type: ignore[arg-type]
