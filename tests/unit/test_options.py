"""The words of a lock: a wrong one is refused where it is written, with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import LockUsageError, options
from celery_locks.options import FOREVER, LockOptions


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tll": 3}, "here: no lock option 'tll'; there are key, ttl, limit, shared, on_conflict"),
        (
            {"on_conflict": "ignore"},
            "here: on_conflict is 'ignore'; write 'skip' or 'raise' or 'requeue' or 'wait'",
        ),
        ({"on_retry": "hold"}, "here: on_retry is 'hold'; write 'release' or 'keep'"),
        ({"on_lost": "ignore"}, "here: on_lost is 'ignore'; write 'raise' or 'warn'"),
        (
            {"on_unavailable": "skip"},
            "here: on_unavailable is 'skip'; write 'requeue' or 'run' or 'fail'",
        ),
        ({"scope": "forever"}, "here: scope is 'forever'; write 'running'"),
        ({"ttl": 0.5}, "here: ttl is 0.5 s; below 1 s there is no time to renew it"),
        ({"ttl": "30"}, "here: ttl must be a finite number of seconds, not '30'"),
        ({"ttl": True}, "here: ttl must be a finite number of seconds, not True"),
        ({"limit": 0}, "here: limit is 0; it must be a whole number from 1"),
        ({"limit": 1.5}, "here: limit is 1.5; it must be a whole number from 1"),
        ({"wait": -1}, "here: wait must be a number of seconds from 0, or 'forever', not -1"),
        ({"wait": None}, "here: wait is None; write a number of seconds, or 'forever'"),
        ({"wait": "for ever"}, "here: wait must be a number of seconds from 0, or 'forever'"),
        ({"pending_ttl": 0.5}, "here: pending_ttl is 0.5 s"),
        ({"debounce": -1}, "here: debounce must be a number of seconds from 0, not -1"),
        ({"once": 1e300}, "here: once is above ten years"),
        ({"once_failed": -1}, "here: once_failed must be a number of seconds from 0, not -1"),
        ({"at_least": 1e18}, "here: at_least is above ten years"),
        ({"at_least": -1}, "here: at_least must be a number of seconds from 0, not -1"),
        ({"key": ""}, "here: key is ''; write a template such as 'invoice:{id}' or a function"),
        ({"key": 7}, "here: key is 7; write a template"),
        ({"enabled": "no"}, "here: enabled is 'no'; write True or False"),
        ({"on_conflict": ["skip"]}, "here: on_conflict is"),
        ({"shared": "yes"}, "here: shared is 'yes'; write True or False"),
        ({"shared": True, "limit": 1}, "here: shared and limit exclude each other"),
        ({"shared": True, "limit": len}, "here: shared and limit exclude each other"),
        ({"on_conflict": {"then": "requeue"}}, "'then' is what follows a wait: write"),
        ({"on_conflict": {"run": "requeue", "then": "skip"}}, "'then' is what follows a wait"),
        ({"on_conflict": {"publish": "raise", "then": "skip"}}, "'then' is what follows a wait"),
        ({"on_conflict": {"run": "wait", "then": "wait"}}, "with 'raise' or 'requeue' or 'skip'"),
        ({"on_conflict": {"run": "wait", "then": ["skip"]}}, "with 'raise' or 'requeue' or 'skip'"),
        ({"then": "requeue"}, "here: no lock option 'then'"),
    ],
)
def test_a_wrong_word_is_refused_with_its_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        options.checked(values, "here")


def test_good_words_are_given_back_as_they_were_said() -> None:
    values = {"key": "k", "ttl": 5, "limit": 2, "wait": "forever", "on_conflict": "wait"}
    assert options.checked(values, "here") == values


@pytest.mark.parametrize(
    ("settings", "values", "on_conflict", "patience"),
    [
        ({}, [{"wait": 5}], "wait", 5),
        ({}, [{}, {"wait": 5}], "wait", 5),
        ({}, [{"wait": "forever"}], "wait", FOREVER),
        ({"on_conflict": "requeue"}, [{"wait": 5}], "requeue", 5),
        ({}, [{"on_conflict": "requeue"}, {"wait": 5}], "requeue", 5),
        ({"wait": 60}, [{}], "skip", 60),
        ({"wait": 60}, [{"on_conflict": "wait"}], "wait", 60),
        ({}, [{"debounce": 2, "wait": 5}], "requeue", 5),
    ],
)
def test_a_task_that_says_how_long_to_wait_waits(
    settings: Any, values: Any, on_conflict: str, patience: float
) -> None:
    """As ``hold(wait=5)`` does; a default patience for all tasks makes none of them wait."""
    made = options.combined(settings, *values)
    assert (made.on_conflict, made.patience) == (on_conflict, patience)


def test_the_later_said_is_the_stronger() -> None:
    made = options.combined({"ttl": 5, "limit": 2}, {"ttl": 6}, {"key": "k"})
    assert (made.ttl, made.limit, made.key) == (6, 2, "k")
    assert options.combined() == LockOptions()


@pytest.mark.parametrize(
    ("values", "wait"),
    [
        ({"on_conflict": "wait"}, FOREVER),
        ({"on_conflict": "wait", "wait": 3}, 3),
        ({"on_conflict": "wait", "wait": "forever"}, FOREVER),
        ({"on_conflict": "requeue", "wait": 3}, None),
        ({}, None),
    ],
)
def test_only_the_policy_wait_makes_the_lock_itself_wait(values: Any, wait: float | None) -> None:
    """``wait`` with requeue is patience over many messages, not in the worker's slot."""
    assert LockOptions(**values).spec.wait == wait


@pytest.mark.parametrize(
    ("values", "limit", "shared"),
    [
        ([{"limit": 3}, {"shared": True}], 1, True),
        ([{"shared": True}, {"limit": 3}], 3, False),
        ([{"limit": 3}, {"shared": False}], 3, False),
    ],
)
def test_the_later_of_limit_and_shared_counts(values: Any, limit: int, shared: bool) -> None:
    made = options.combined({}, *values)
    assert (made.limit, made.shared, made.spec.shared) == (limit, shared, shared)


@pytest.mark.parametrize("more", [{"once": 60}, {"scope": "queued+running", "key": "k"}])
def test_shared_is_refused_where_only_one_may_run(more: dict[str, Any]) -> None:
    with pytest.raises(LockUsageError, match="leave one of them out"):
        options.combined({}, {"shared": True, **more})


THEN_REQUEUE = options.checked({"on_conflict": {"run": "wait", "then": "requeue"}}, "here")


@pytest.mark.parametrize(
    ("layers", "then"),
    [
        ([THEN_REQUEUE], "requeue"),
        ([THEN_REQUEUE, {"wait": 5}], "requeue"),
        ([THEN_REQUEUE, {"on_conflict": "wait"}], "raise"),
        ([{"on_conflict": "wait"}, THEN_REQUEUE], "requeue"),
        ([THEN_REQUEUE, {"on_publish": "raise"}], "requeue"),
        ([{"wait": 5}], "raise"),
    ],
)
def test_then_belongs_to_the_wait_that_it_is_written_with(layers: Any, then: str) -> None:
    """A call that says "wait" means the default "raise", whatever its task says."""
    made = options.combined({}, *layers)
    assert (made.on_conflict, made.then) == ("wait", then)


def test_then_after_a_wait_without_an_end_is_refused() -> None:
    with pytest.raises(LockUsageError, match="here: a wait without an end has no 'then'"):
        options.refuse_idle(THEN_REQUEUE, options.combined({}, THEN_REQUEUE), "here")
    options.refuse_idle(THEN_REQUEUE, options.combined({"wait": 5}, THEN_REQUEUE), "here")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"once_failed": 5},
            "once_failed has no effect without once; write for example once=86400",
        ),
        (
            {"once": 60, "once_failed": 5, "reuse": "never"},
            "once_failed has no effect with reuse='never'",
        ),
        ({"once": 60, "once_failed": 5, "reuse": "always"}, "no effect with reuse='always'"),
        ({"once": 60, "once_failed": 600}, ""),
        ({"once_failed": 0}, ""),
    ],
)
def test_once_failed_needs_once_and_no_other_rule_for_failures(values: Any, sentence: str) -> None:
    made = options.combined({}, values)
    if not sentence:
        options.refuse_idle(values, made, "here")
        return
    with pytest.raises(LockUsageError, match=sentence):
        options.refuse_idle(values, made, "here")
