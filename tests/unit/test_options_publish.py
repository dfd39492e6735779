"""The words of a lock: each side of a conflict, and what follows from what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks import settings
from celery_locks.errors import LockUsageError
from celery_locks.options import LockOptions, checked, combined


def sides(on_conflict: Any) -> tuple[str, str]:
    options = combined(checked({"on_conflict": on_conflict}, "here"))
    return options.on_conflict, options.on_publish


@pytest.mark.parametrize(
    ("said", "run", "publish"),
    [
        ("skip", "skip", "return_existing"),
        ("requeue", "requeue", "return_existing"),
        ("wait", "wait", "return_existing"),
        ("raise", "raise", "raise"),
        ("replace", "skip", "replace"),
        ("allow", "skip", "allow"),
        ("return_existing", "skip", "return_existing"),
        ({"run": "requeue"}, "requeue", "return_existing"),
        ({"publish": "raise"}, "skip", "raise"),
        ({"publish": "replace", "run": "wait"}, "wait", "replace"),
    ],
)
def test_one_word_or_a_pair(said: Any, run: str, publish: str) -> None:
    """A word means the side that knows it; "raise" means both."""
    assert sides(said) == (run, publish)


@pytest.mark.parametrize(
    "said",
    ["never", None, 3, {}, {"publish": "skip"}, {"run": "replace"}, {"start": "skip"}, ["skip"]],
)
def test_other_words_are_refused_with_those_there_are(said: Any) -> None:
    with pytest.raises(LockUsageError, match=r"return_existing.*replace") as raised:
        checked({"on_conflict": said}, "task shop.bill")
    assert "task shop.bill" in str(raised.value)


def test_a_side_nobody_said_is_left_to_the_others() -> None:
    """The settings say how runs behave, the task how publishing does: neither undoes the other."""
    by_app = checked({"on_conflict": "requeue"}, "app")
    by_task = checked({"on_conflict": {"publish": "replace"}}, "task")
    options = combined(by_app, by_task)
    assert (options.on_conflict, options.on_publish) == ("requeue", "replace")


def test_a_pair_in_the_settings_is_understood() -> None:
    conf = {"locks_url": "redis://", "locks_on_conflict": {"publish": "raise", "run": "wait"}}
    options = combined(settings.of(SimpleNamespace(conf=conf)).task)
    assert (options.on_conflict, options.on_publish) == ("wait", "raise")


def test_debounce_means_queued_and_loses_nothing() -> None:
    """A skip would lose the last arguments where they come due during a run."""
    options = combined({"debounce": 2.0})
    assert (options.scope, options.on_conflict) == ("queued", "requeue")
    said = combined({"debounce": 2.0}, {"scope": "queued+running", "on_conflict": "skip"})
    assert (said.scope, said.on_conflict) == ("queued+running", "skip")


def test_what_debounce_means_is_as_strong_as_who_says_it() -> None:
    """Stronger than a setting for all tasks; a later word, or none at all any more, beats it."""
    of_all = {"scope": "queued+running", "on_conflict": "skip"}
    options = combined(of_all, {"debounce": 2.0})
    assert (options.scope, options.on_conflict) == ("queued", "requeue")
    options = combined({"debounce": 2.0}, of_all)
    assert (options.scope, options.on_conflict) == ("queued+running", "skip")
    options = combined(of_all, {"debounce": 2.0}, {"debounce": 0.0})
    assert (options.scope, options.on_conflict) == ("queued+running", "skip")


@pytest.mark.parametrize(
    "said",
    [
        {"scope": "always"},
        {"pending_ttl": 0.5},
        {"pending_ttl": "1h"},
        {"debounce": -1},
        {"debounce": float("inf")},
        {"on_publish": "raise"},
    ],
)
def test_wrong_values_are_refused_where_they_are_written(said: dict[str, Any]) -> None:
    with pytest.raises(LockUsageError, match="here"):
        checked(said, "here")


def test_defaults() -> None:
    options = LockOptions()
    assert (options.scope, options.pending_ttl, options.debounce) == ("running", 3600.0, 0.0)
    assert options.on_publish == "return_existing"
