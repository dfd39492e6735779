"""Queries at their own level."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks.core.queries import Queries
from celery_locks.errors import (
    LockUnavailable,
)
from celery_locks.store.commands.replies import LockPage
from celery_locks.types import Holder, LockInfo
from tests.support.acquiring import Run
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.sent_calls import OneCallCommands
from tests.support.virtual_clock import VirtualClock


def test_list_reads_every_page_and_names_each_lock_once(
    run: Run, scripted_store: ScriptedStore
) -> None:
    """A lock that moves between two pages is on both."""
    one, two = LockInfo("one", 1, ()), LockInfo("two", 1, ())
    scripted_store.expect(("page", LockPage([one], "0:5")), ("page", LockPage([one, two], "")))
    assert run(Queries(OneCallCommands("p")).list_locks()) == [one, two]


def test_recent_answer_needs_no_call_and_is_as_old_as_its_question(
    scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """A slow reply does not make the answer younger."""
    queries = Queries(OneCallCommands("p"))
    held = LockInfo("a", 1, (Holder(token="t"),))

    def is_locked(max_age: float) -> bool:
        return scripted_store.run(queries.is_locked("a", max_age))

    def after_a_second(_: Any) -> LockInfo:
        virtual_clock.advance(1)
        return held

    scripted_store.expect(("describe", after_a_second))
    assert is_locked(0.0)
    assert is_locked(1.0)
    scripted_store.expect(("describe", None))
    assert not is_locked(0.9)
    assert not is_locked(60.0)


def test_answer_that_never_came_is_not_remembered(
    scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    queries = Queries(OneCallCommands("p"))
    scripted_store.expect(("describe", reply_lost()), ("describe", None))
    with pytest.raises(LockUnavailable):
        scripted_store.run(queries.is_locked("a", 60.0))
    assert not scripted_store.run(queries.is_locked("a", 60.0))
