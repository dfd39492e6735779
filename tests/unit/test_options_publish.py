"""The words of a lock: each side of a conflict, and what follows from what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks import settings
from celery_locks.errors import LockUsageError
from celery_locks.options import LockOptions, checked, combined, refuse_idle


def sides(on_conflict: Any) -> tuple[str, str]:
    options = combined(checked({"on_conflict": on_conflict}, "here"))
    return options.on_conflict, options.on_publish


@pytest.mark.parametrize(
    ("values", "run", "publish"),
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
        ({"publish": "skip"}, "skip", "skip"),
        ({"publish": "wait"}, "skip", "wait"),
    ],
)
def test_one_word_or_a_pair(values: Any, run: str, publish: str) -> None:
    """A word means the side that knows it; "raise" means both."""
    assert sides(values) == (run, publish)


@pytest.mark.parametrize(
    "values",
    ["never", None, 3, {}, {"publish": "requeue"}, {"run": "replace"}, {"start": "skip"}, ["skip"]],
)
def test_other_words_are_refused_with_those_there_are(values: Any) -> None:
    with pytest.raises(LockUsageError, match=r"return_existing.*replace") as raised:
        checked({"on_conflict": values}, "task shop.bill")
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
    values = combined({"debounce": 2.0}, {"scope": "queued+running", "on_conflict": "skip"})
    assert (values.scope, values.on_conflict) == ("queued+running", "skip")


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
    "values",
    [
        {"scope": "always"},
        {"pending_ttl": 0.5},
        {"pending_ttl": "1h"},
        {"keep_message": "yes"},
        {"keep_message": 1},
        {"debounce": -1},
        {"debounce": float("inf")},
        {"on_publish": "raise"},
    ],
)
def test_wrong_values_are_refused_where_they_are_written(values: dict[str, Any]) -> None:
    with pytest.raises(LockUsageError, match="here"):
        checked(values, "here")


def test_defaults() -> None:
    options = LockOptions()
    assert (options.scope, options.pending_ttl, options.debounce) == ("running", 3600.0, 0.0)
    assert options.on_publish == "return_existing"


# max_queued.


def test_queue_has_room_for_as_many_as_may_run_unless_it_is_said() -> None:
    assert combined({"scope": "queued"}).queue_limit == 1
    assert combined({"scope": "queued", "limit": 3}).queue_limit == 3
    assert combined({"scope": "queued", "limit": 3, "max_queued": 1}).queue_limit == 1
    assert combined({"scope": "queued", "max_queued": 5}).queue_limit == 5
    assert combined({"scope": "queued+running", "limit": 3, "max_queued": 5}).queue_limit == 3


@pytest.mark.parametrize(
    ("values", "on_publish"),
    [
        ({"max_queued": 5}, "raise"),
        ({"max_queued": 5, "on_conflict": {"publish": "skip"}}, "skip"),
        ({"max_queued": 1}, "return_existing"),
        ({"max_queued": 5, "scope": "queued+running"}, "return_existing"),
        ({}, "return_existing"),
    ],
)
def test_full_queue_of_several_raises_unless_it_is_said(
    values: dict[str, Any], on_publish: str
) -> None:
    """Silence would lose calls, and no single message is the existing one."""
    assert combined({"scope": "queued"}, checked(values, "here")).on_publish == on_publish


def test_wait_is_for_the_publisher_if_it_waits() -> None:
    """The run keeps its own side: one word would else make it occupy a worker's slot."""
    publisher_waits = {"on_conflict": {"publish": "wait"}, "wait": 5}
    words = checked({"key": "k", "scope": "queued", **publisher_waits}, "here")
    options = combined({}, words)
    assert (options.on_publish, options.on_conflict, options.patience) == ("wait", "skip", 5)
    refuse_idle(words, options, "here")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"max_queued": 3}, "max_queued has no effect with scope='running'; write scope='queued'"),
        ({"max_queued": 3, "scope": "queued+running"}, "or limit with scope='queued\\+running'"),
        ({"max_queued": 3, "debounce": 2}, "max_queued has no effect with debounce"),
        ({"max_queued": 3, "scope": "queued", "on_conflict": "allow"}, "publish is 'allow'"),
        ({"max_queued": 3, "scope": "queued", "on_conflict": "replace"}, "allows more; write"),
        ({"max_queued": 2, "scope": "queued", "on_conflict": "return_existing"}, "allows more"),
        ({"on_conflict": {"publish": "wait"}}, "for calls that find another in the queue"),
        ({"wait": 5, "scope": "queued", "on_conflict": {"publish": "skip", "run": "skip"}}, "wait"),
        ({"keep_message": True}, "keep_message has no effect with scope='running'"),
        (
            {"keep_message": True, "debounce": 1, "arguments": "first"},
            "keep_message is not possible with merged arguments",
        ),
    ],
)
def test_nonsense_about_the_queue_is_refused_where_it_is_written(
    values: dict[str, Any], why: str
) -> None:
    words = checked({"key": "k", **values}, "here")
    with pytest.raises(LockUsageError, match=f"here: .*{why}"):
        refuse_idle(words, combined({}, words), "here")


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3", None])
def test_max_queued_is_a_whole_number(number: Any) -> None:
    with pytest.raises(LockUsageError, match=r"max_queued is .*; it must be a whole number from 1"):
        checked({"max_queued": number}, "here")


def merge(earlier: Any, later: Any) -> Any:
    return later


@pytest.mark.parametrize(
    ("elapsed", "debounce", "settle"), [(0, 4, 2), (1, 3, 2), (2.5, 1.5, 0.5), (9, 0, 0)]
)
def test_due_time_of_a_window(elapsed: float, debounce: float, settle: float) -> None:
    assert combined({"debounce": 4}).due_in(elapsed) == debounce
    assert combined({"settle": 2, "max_wait": 3}).due_in(elapsed) == settle
    assert combined({"settle": 2}).due_in(elapsed) == 2


def test_settle_means_queued_as_debounce_does() -> None:
    options = combined({"scope": "running"}, {"settle": 2.0})
    assert (options.scope, options.on_conflict, options.has_window) == ("queued", "requeue", True)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"settle": -1}, "settle must be a number of seconds from 0"),
        ({"max_wait": "1"}, "max_wait must be a number of seconds from 0"),
        ({"arguments": "both"}, r"arguments is 'both'; write 'last', 'first' or a function merge"),
        ({"settle": 1, "debounce": 1}, "debounce and settle together"),
        ({"settle": 5, "max_wait": 2}, "max_wait is 2 s and settle 5 s"),
        ({"max_wait": 2}, "max_wait has no effect without settle"),
        ({"debounce": 1, "max_wait": 2}, "max_wait has no effect without settle"),
        ({"arguments": "first"}, "arguments has no effect without debounce or settle"),
        ({"arguments": merge}, "arguments has no effect without debounce or settle"),
        ({"settle": 1, "arguments": merge, "limit": 2}, "arguments needs one queued call"),
        ({"settle": 1, "arguments": merge, "scope": "queued+running"}, "write scope='queued'"),
        ({"settle": 1, "arguments": merge, "key": "*"}, "arguments has no effect without a key"),
        ({"settle": 1, "key": None}, "settle has no effect on a lock by task id"),
        ({"settle": 1, "scope": "running"}, "settle has no effect with scope='running'"),
        ({"settle": 1, "on_conflict": "skip"}, "settle with on_conflict='skip' would lose"),
        ({"settle": 1, "on_conflict": "allow"}, "on_conflict='allow' has no effect with settle"),
        ({"settle": 1, "max_wait": 1, "arguments": merge}, ""),
        ({"debounce": 1, "arguments": "first"}, ""),
        ({"debounce": 1, "arguments": "last", "scope": "queued+running"}, ""),
    ],
)
def test_windows_that_make_no_sense_are_refused(values: dict[str, Any], sentence: str) -> None:
    def write() -> None:
        options = checked({"key": "k", **values}, "here")
        refuse_idle(options, combined({}, options), "here")

    if not sentence:
        write()
        return
    with pytest.raises(LockUsageError, match=sentence):
        write()
