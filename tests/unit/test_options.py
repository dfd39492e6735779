"""The words of a lock: a wrong one is refused where it is written, with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import LockUsageError, options
from celery_locks.options import FOREVER, LockOptions


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"tll": 3}, "here: no lock option 'tll'; there are key, ttl, limit, on_conflict"),
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
        ({"at_least": 1e18}, "here: at_least is above ten years"),
        ({"at_least": -1}, "here: at_least must be a number of seconds from 0, not -1"),
        ({"key": ""}, "here: key is ''; write a template such as 'invoice:{id}' or a function"),
        ({"key": 7}, "here: key is 7; write a template"),
        ({"enabled": "no"}, "here: enabled is 'no'; write True or False"),
        ({"on_conflict": ["skip"]}, "here: on_conflict is"),
    ],
)
def test_a_wrong_word_is_refused_with_its_sentence(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        options.checked(said, "here")


def test_good_words_are_given_back_as_they_were_said() -> None:
    said = {"key": "k", "ttl": 5, "limit": 2, "wait": "forever", "on_conflict": "wait"}
    assert options.checked(said, "here") == said


@pytest.mark.parametrize(
    ("settings", "said", "on_conflict", "patience"),
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
    settings: Any, said: Any, on_conflict: str, patience: float
) -> None:
    """As ``hold(wait=5)`` does; a default patience for all tasks makes none of them wait."""
    made = options.combined(settings, *said)
    assert (made.on_conflict, made.patience) == (on_conflict, patience)


def test_the_later_said_is_the_stronger() -> None:
    made = options.combined({"ttl": 5, "limit": 2}, {"ttl": 6}, {"key": "k"})
    assert (made.ttl, made.limit, made.key) == (6, 2, "k")
    assert options.combined() == LockOptions()


@pytest.mark.parametrize(
    ("said", "wait"),
    [
        ({"on_conflict": "wait"}, FOREVER),
        ({"on_conflict": "wait", "wait": 3}, 3),
        ({"on_conflict": "wait", "wait": "forever"}, FOREVER),
        ({"on_conflict": "requeue", "wait": 3}, None),
        ({}, None),
    ],
)
def test_only_the_policy_wait_makes_the_lock_itself_wait(said: Any, wait: float | None) -> None:
    """``wait`` with requeue is patience over many messages, not in the worker's slot."""
    assert LockOptions(**said).spec.wait == wait
