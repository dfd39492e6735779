"""Facts and options in, a decision out: every rule of a busy lock and an absent server."""

from __future__ import annotations

import pytest

from celery_locks.options import LockOptions, OnConflict
from celery_locks.policy import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Situation,
    on_conflict,
    on_done,
    on_unavailable,
)
from celery_locks.types import Conflict, Holder

OTHERS = Conflict("name", (Holder(token="t", task_id="other"),), 3.0, 1)


def by(task_id: str, retries: int = 0, replaced: int = 0) -> Conflict:
    holder = Holder(token="t", task_id=task_id, retries=retries, replaced=replaced)
    return Conflict("name", (Holder(token="u", task_id="other"), holder), 3.0, 1)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [("skip", "skip"), ("raise", "raise"), ("requeue", "requeue"), ("wait", "raise")],
)
def test_each_policy_decides(policy: OnConflict, kind: str) -> None:
    """``wait`` has waited by the time it is asked here: its patience is over."""
    assert on_conflict(OTHERS, LockOptions(on_conflict=policy), Situation("me")).kind == kind


def test_a_skip_before_another_link_raises() -> None:
    call = Situation("me", has_followers=True)
    assert on_conflict(OTHERS, LockOptions(on_conflict="skip"), call).kind == "raise"


@pytest.mark.parametrize("policy", ["skip", "raise", "requeue", "wait"])
def test_a_copy_is_put_back_in_every_policy(policy: OnConflict) -> None:
    """Anything else would acknowledge the original's message, or fail a job that is running."""
    options = LockOptions(on_conflict=policy, wait=0)
    call = Situation("me", attempt=1, has_followers=True, patience_used=9)
    for retries in (1, 2):
        assert on_conflict(by("me", retries), options, call).kind == "requeue"


def test_who_has_no_id_is_nobodys_copy() -> None:
    conflict = Conflict("name", (Holder(token="t", task_id=None),), 3.0, 1)
    assert on_conflict(conflict, LockOptions(), Situation(None)).kind == "skip"


def test_a_replacement_is_a_later_attempt_than_any_retry() -> None:
    assert Holder(replaced=1).attempt > Holder(retries=10_000).attempt
    assert by("me", retries=5).has_copy_of("me", Holder(replaced=1).attempt) is False


def test_requeue_ends_with_its_patience() -> None:
    options = LockOptions(on_conflict="requeue", wait=10)
    assert on_conflict(OTHERS, options, Situation("me", patience_used=9.9)).kind == "requeue"
    decision = on_conflict(OTHERS, options, Situation("me", patience_used=10))
    assert (decision.kind, decision.why) == ("raise", "its patience of 10 s is over")


def test_without_a_message_nothing_is_put_back() -> None:
    """Eager and direct calls have no message."""
    call = Situation("me", can_requeue=False)
    assert on_conflict(OTHERS, LockOptions(on_conflict="requeue"), call).kind == "raise"
    assert on_conflict(by("me"), LockOptions(), call).kind == "raise"
    assert on_unavailable(LockOptions(), call).kind == "raise"


@pytest.mark.parametrize(
    ("word", "kind"), [("requeue", "requeue"), ("run", "run"), ("fail", "raise")]
)
def test_an_absent_server_is_answered(word: str, kind: str) -> None:
    options = LockOptions(on_unavailable=word)  # type: ignore[arg-type]
    assert on_unavailable(options, Situation("me")).kind == kind


def test_a_copy_of_what_is_done_comes_back_to_look_for_the_result() -> None:
    assert on_done(Situation("me")).kind == "requeue"


def test_pauses_grow_with_jitter_and_have_an_end() -> None:
    """Jitter keeps many that were put back together from coming back together."""
    options = LockOptions(on_conflict="requeue")
    for times, longest in ((0, FIRST_PAUSE), (1, 2.0), (3, 8.0), (50, LONGEST_PAUSE)):
        call = Situation("me", times_requeued=times)
        pauses = {on_conflict(OTHERS, options, call).pause for _ in range(50)}
        assert len(pauses) > 40
        assert all(longest / 2 <= pause <= longest for pause in pauses)


def test_a_pause_stays_under_what_the_broker_allows() -> None:
    """A delayed message must come before its visibility timeout makes copies of it."""
    call = Situation("me", times_requeued=20, longest_pause=0.5)
    assert on_conflict(OTHERS, LockOptions(on_conflict="requeue"), call).pause <= 0.5


@pytest.mark.parametrize("times", [1023, 1024, 5000, 8_000_000_000])
def test_pause_stays_bounded_however_often_a_message_was_put_back(times: int) -> None:
    """A task that waits for hours reaches the 1024th time, and must not fail of arithmetic."""
    decision = on_unavailable(LockOptions(), Situation("me", times_requeued=times))
    assert LONGEST_PAUSE / 2 <= decision.pause <= LONGEST_PAUSE


def test_a_refusal_is_waited_out_for_an_hour() -> None:
    """A password may be rotated, but a task that only a person can help must not wait for ever."""
    options = LockOptions()
    assert on_unavailable(options, Situation("me", refused_for=3599)).kind == "requeue"
    assert on_unavailable(options, Situation("me", refused_for=3600)).kind == "raise"
    run = LockOptions(on_unavailable="run")
    assert on_unavailable(run, Situation("me", refused_for=3600)).kind == "run"
    away = Situation("me", patience_used=1e6)
    assert on_unavailable(options, away).kind == "requeue", "an outage may last as long as it will"
