"""Facts and options in, a decision out: every rule of a busy lock and an absent server."""

from __future__ import annotations

import pytest

from celery_locks.options import LockOptions, OnConflict, Then
from celery_locks.policy import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Situation,
    on_conflict,
    on_done,
    on_unavailable,
)
from celery_locks.types import Conflict, Holder, Override

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


@pytest.mark.parametrize(
    ("policy", "kind"),
    [("skip", "requeue"), ("raise", "raise"), ("requeue", "requeue"), ("park", "park")],
)
def test_a_guarded_lock_drops_no_call(policy: OnConflict, kind: str) -> None:
    """A skip would drop what may be the only call: nobody knows of a run that it duplicates."""
    guard = Override(0, "", "lost", since=1.0, until=31.0, is_guard=True)
    conflict = Conflict("name", (), 30.0, 1, pause=guard)
    decision = on_conflict(conflict, LockOptions(on_conflict=policy), Situation("me"))
    assert decision.kind == kind
    assert "lost its data" in decision.why


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


@pytest.mark.parametrize("policy", ["skip", "raise", "requeue", "wait", "park"])
def test_a_run_of_an_earlier_attempt_is_no_reason_to_skip_the_retry(policy: OnConflict) -> None:
    """The store takes the lock over where it may; what is left is a redelivered copy that runs."""
    options = LockOptions(on_conflict=policy, wait=0)
    call = Situation("me", attempt=Holder(retries=6).attempt, has_followers=True, patience_used=9)
    assert on_conflict(by("me", retries=5), options, call).kind == "requeue"
    assert on_conflict(by("me", replaced=1), options, call).kind == "requeue"


@pytest.mark.parametrize(
    "holder",
    [
        Holder(token="qme", task_id="me", fence=1),
        Holder(token="-t", task_id="me", fence=1),
        Holder(token="t", task_id="me", fence=1, retries=-1),
        Holder(token="t", task_id="me", fence=1, nested=True),
        Holder(token="t", task_id="other", fence=1),
    ],
    ids=["reserved", "kept", "queued", "held by its code", "another job"],
)
def test_what_does_not_run_the_job_is_no_copy_of_its_retry(holder: Holder) -> None:
    assert not Conflict("name", (holder,), 3.0, 1).has_copy_of("me", 2)


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


@pytest.mark.parametrize("then", ["raise", "requeue", "skip"])
def test_then_decides_after_the_wait(then: Then) -> None:
    options = LockOptions(on_conflict="wait", wait=5, then=then)
    assert on_conflict(OTHERS, options, Situation("me")).kind == then
    assert LockOptions(on_conflict="raise", then=then).spec.wait is None


def test_wait_then_requeue_has_no_end_of_its_own() -> None:
    """``wait`` is the time in the slot, each time; a total would need a number of its own."""
    options = LockOptions(on_conflict="wait", wait=5, then="requeue")
    for conflict in (OTHERS, by_a_message()):
        decision = on_conflict(conflict, options, Situation("me", patience_used=9999))
        assert decision.kind == "requeue"
        assert decision.pause > 0


def test_nobody_waits_in_a_slot_for_a_queued_message() -> None:
    """Its run needs a slot too; so the patience is spent in the queue, before ``then`` decides."""
    options = LockOptions(on_conflict="wait", wait=5, then="skip")
    kinds = [
        on_conflict(by_a_message(), options, Situation("me", patience_used=used)).kind
        for used in (0, 5)
    ]
    assert kinds == ["requeue", "skip"]


def by_a_message() -> Conflict:
    return Conflict("name", (Holder(token="t", task_id="other", retries=-1),), 3.0, 1)
