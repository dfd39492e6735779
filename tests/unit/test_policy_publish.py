"""What follows from a duplicate at publish, and from a message's lock at the run."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks.options import LockOptions
from celery_locks.policy import AWAITED, Situation, on_conflict, on_duplicate
from celery_locks.types import Conflict, Holder

MESSAGE = Holder(token="qone", task_id="one", task="bill", retries=-1)
RUN = Holder(token="ab", task_id="one", task="bill")


def conflict(*holders: Holder) -> Conflict:
    return Conflict("lock", holders, 5.0, 1, as_of=100.0)


def decided(*holders: Holder, frozen: bool = False, **options: Any) -> tuple[str, str | None]:
    duplicate = on_duplicate(
        conflict(*holders), LockOptions(**options), "bill", "new", id_is_frozen=frozen
    )
    return duplicate.decision, duplicate.other.token if duplicate.other else None


@pytest.mark.parametrize("word", ["return_existing", "raise"])
@pytest.mark.parametrize("holder", [MESSAGE, RUN])
def test_a_duplicate_is_answered_as_said(word: Any, holder: Holder) -> None:
    assert decided(holder, on_publish=word) == (word, holder.token)


@pytest.mark.parametrize("word", ["return_existing", "raise", "replace"])
def test_the_run_decides_where_others_wait_for_the_id(word: Any) -> None:
    assert decided(MESSAGE, frozen=True, on_publish=word) == ("allow", None)


@pytest.mark.parametrize(
    "holder", [Holder(token="cd", pid=1), Holder(token="cd", task_id="two", task="refund")]
)
def test_who_does_another_job_is_no_duplicate(holder: Holder) -> None:
    """A plain process has no result, and another task's result is not this one's."""
    assert decided(holder) == ("allow", None)
    assert decided(holder, RUN) == ("return_existing", "ab")


@pytest.mark.parametrize("word", ["raise", "skip", "wait"])
def test_full_queue_counts_the_messages_of_every_task(word: Any) -> None:
    """The limit is on the messages of a key; but another task's result is never this one's."""
    other = Holder(token="qtwo", task_id="two", task="refund", retries=-1)
    decision = "raise" if word == "wait" else word  # it has waited already
    assert decided(other, on_publish=word, max_queued=2) == (decision, "qtwo")
    assert decided(other, frozen=True, on_publish=word, max_queued=2) == ("allow", None)
    assert decided(other, on_publish="return_existing", max_queued=1) == ("allow", None)


@pytest.mark.parametrize("how", [{"on_publish": "replace"}, {"debounce": 1.0}])
def test_only_a_message_that_nobody_waits_for_is_replaced(how: dict[str, Any]) -> None:
    awaited = Holder(token="qtwo", task_id="two", task="bill", retries=-1, extra={AWAITED: True})
    retried = Holder(token="qthree", task_id="three", task="bill", retries=1)
    assert decided(MESSAGE, **how) == ("replace", "qone")
    assert decided(RUN, MESSAGE, **how) == ("replace", "qone")
    same_id = Holder(token="qnew", task_id="new", task="bill", retries=-1)
    for other in (RUN, awaited, retried, same_id):
        assert decided(other, **how) == ("allow", None)


def run(*holders: Holder, options: LockOptions | None = None, **call: Any) -> str:
    situation = Situation(task_id="two", attempt=1, **call)
    return on_conflict(conflict(*holders), options or LockOptions(), situation).kind


def test_a_message_that_lost_its_place_to_another_comes_back() -> None:
    """It may have been replaced by one that was never sent: skipped, both would be lost."""
    assert run(MESSAGE, had_reservation=True) == "requeue"
    assert run(RUN, had_reservation=True) == "skip"
    assert run(MESSAGE) == "skip"


def test_nobody_waits_for_a_message_in_a_slot_that_it_may_need() -> None:
    waits = LockOptions(on_conflict="wait")
    assert run(MESSAGE, options=waits) == "requeue"
    assert run(RUN, options=waits) == "raise"  # its patience in line is over
