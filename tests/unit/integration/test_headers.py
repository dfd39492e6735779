"""What travels with a message is read as if anybody could have written it, for anybody can."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, logs
from celery_locks.errors import LockUsageError
from celery_locks.integration import headers as module
from celery_locks.integration.headers import (
    HEADER,
    NO_HEADER,
    VERSION,
    LockHeader,
    give_token,
    given_token,
    remove_token,
)
from celery_locks.store.commands.locks import reservation_token
from celery_locks.testing import in_memory_locks


@pytest.fixture(autouse=True)
def all_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_reports", logs.Reports())


def read(raw: Any) -> LockHeader:
    return LockHeader.read({HEADER: raw})


def test_a_header_survives_its_journey() -> None:
    header = LockHeader(
        {"key": "a:{x}", "on_conflict": "requeue", "on_publish": "replace", "wait": 3},
        queued="a:1",
        of_retry=True,
        replaced=True,
        since=1.5,
        times=3,
        unseen=2.5,
        published_by=(1_800_000_000_000_000, 7),
    )
    assert read({"options": {"on_conflict": "wait", "then": "skip", "wait": 1}}).options == {
        "on_conflict": "wait",
        "then": "skip",
        "wait": 1,
    }
    sent = json.loads(json.dumps(header.write({"other": 1})))
    assert sent["other"] == 1
    assert sent[HEADER]["version"] == VERSION
    assert LockHeader.read(sent) == header


@pytest.mark.parametrize("headers", [None, {}, {"other": 1}, {HEADER: None}, "text", 7, [[1, 2]]])
def test_most_messages_say_nothing(headers: Any) -> None:
    assert LockHeader.read(headers) is NO_HEADER


def test_a_header_without_content_is_not_sent() -> None:
    assert NO_HEADER.write({HEADER: {"times": 3}, "other": 1}) == {"other": 1}
    assert NO_HEADER.write(None) == {}


def test_what_stays_for_the_same_attempt_is_its_options_and_who_published_it() -> None:
    header = LockHeader({"ttl": 5}, queued="a", since=1.5, times=3, published_by=(7,))
    assert header.of_call() == LockHeader({"ttl": 5}, published_by=(7,))
    assert header.requeued(2.0).published_by == (7,)


def test_main_process_and_child_read_the_same_header() -> None:
    """Celery's Context prefers a header of the name "headers" to all others."""
    outer, inner = {"queued": "outer"}, {"queued": "inner"}
    assert LockHeader.read_request({HEADER: outer}).queued == "outer"
    assert LockHeader.read_request({HEADER: outer, "headers": {HEADER: inner}}).queued == "inner"
    assert LockHeader.read_request({HEADER: outer, "headers": "text"}) is NO_HEADER


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ([["x", 1]], "must be a mapping"),
        ("text", "must be a mapping"),
        (7, "must be a mapping"),
        ({"options": [["ttl", 5]]}, "options .* must be a mapping"),
        ({"options": "ttl"}, "options .* must be a mapping"),
        ({"version": VERSION + 1}, "update the workers before the publishers"),
        ({"version": 10**400}, "update the workers"),
        ({"version": "1"}, "version '1'; it must be a whole number"),
        ({"version": True}, "version True; it must be a whole number"),
        ({"options": {"at_least": 1e18}}, "at_least is above ten years"),
        ({"options": {"once": 1e300}}, "once is above ten years"),
        ({"options": {"ttl": 10**400}}, "ttl is above ten years"),
        ({"options": {"pending_ttl": float("inf")}}, "ttl must be a finite number"),
        ({"options": {"limit": 10**12}}, "limit"),
        ({"options": {"enabled": "no"}}, "enabled"),
        ({"options": {"enabled": None}}, "enabled"),
        ({"options": {"on_conflict": "newer"}}, "on_conflict"),
        ({"options": {"on_publish": "newer"}}, "on_conflict"),
        ({"options": {"then": "requeue"}}, "on_conflict"),
        ({"options": {"on_publish": ["x"], "on_conflict": {}}}, "on_conflict"),
        ({"options": {"scope": ["queued"]}}, "scope"),
        ({"options": {"key": 7}}, "key is 7; it must be a text"),
        ({"options": {"key": "x" * 1001}}, "at most 1000 characters"),
        ({"options": {"key": "{x:>400000000}"}}, "1000 characters or more"),
        ({"options": {"key": "{x!r:.400000f}"}}, "1000 characters or more"),
        ({"options": {"key": "{x"}}, "is no template"),
    ],
    ids=str,
)
def test_lock_options_that_are_not_understood_are_refused(raw: Any, sentence: str) -> None:
    """The task fails with the sentence; it must not run under another lock, or none."""
    with pytest.raises(LockUsageError, match=sentence) as caught:
        read(raw)
    assert "header" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "raw",
    [
        {"queued": [None, "q1"]},
        {"queued": ["\ud800", "q1"]},
        {"queued": "\ud800"},
        {"queued": ""},
        {"queued": "x" * 513},
        {"queued": 7},
        {"queued": ["a", "q", "r"]},
        {"version": 1, "queued": ["a", "q1"]},
        {"version": 1, "replaced": ["other", 1e300]},
        {"since": "yesterday"},
        {"since": float("nan")},
        {"since": float("inf")},
        {"since": True},
        {"since": -1},
        {"since": 10**400},
        {"unseen": [1]},
        {"times": -1},
        {"times": 1.5},
        {"times": "7"},
        {"of_retry": "yes"},
        {"published_by": 7},
        {"published_by": "7"},
        {"published_by": ["7"]},
        {"published_by": [True]},
        {"published_by": [1 << 53]},
        {"published_by": [-1]},
        {"published_by": [1] * 65},
        {"from_a_newer_release": 1},
        {7: 1},
        {"options": {"from_a_newer_release": 1, 7: 2}},
    ],
    ids=str,
)
def test_the_rest_is_ignored_with_a_warning(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is about the message's past only: the task can run under its lock without it."""
    assert read(raw).reservation("id") == ("", "")
    assert read(raw) == NO_HEADER
    assert len(caplog.records) == 1, "once, however many such messages come"
    assert caplog.records[0].levelno == logging.WARNING
    assert "ignore" in caplog.text


def test_known_options_of_a_newer_release_hold() -> None:
    """A publisher may be updated before the workers."""
    options = read({"options": {"ttl": 5, "newer": 1, "on_publish": "raise"}}).options
    assert options == {"ttl": 5, "on_publish": "raise"}


def test_a_forged_count_is_cut() -> None:
    assert read({"times": 8_000_000_000}).times == 1_000_000


def test_a_reservation_has_the_token_of_its_own_task() -> None:
    """Whatever token a message brings: the one of a running holder would free its lock."""
    forged = {"queued": ["run:victim", "0f3a"], "replaced": ["victim", 86400]}
    assert read(forged).reservation("mine") == ("run:victim", reservation_token("mine"))
    assert read({"queued": "a", "token": "0f3a"}).reservation("mine")[1] == reservation_token(
        "mine"
    )
    for strange in (None, "", 7, "\ud800", ["x"]):
        assert read(forged).reservation(strange) == ("", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("again", [False, True])
def test_a_message_of_the_first_release_is_understood(again: bool) -> None:
    token = reservation_token("id", again=again)
    header = read({"queued": ["a", token], "since": 5, "times": 2, "replaced": ["other", 60.0]})
    assert header.reservation("id") == ("a", token)
    assert (header.since, header.times, header.replaced) == (5, 2, True)


def test_a_publisher_is_told_of_its_wrong_header() -> None:
    """Where it is written, and not in the worker's log of tomorrow."""
    app = Celery("headers", broker="memory://", set_as_current=False)

    @app.task(name="job", base=LockedTask, lock_key="job:{key}", shared=False)
    def job(key: str) -> None: ...

    with in_memory_locks(app):
        for header in ("text", {"options": {"ttl": "long"}}):
            with pytest.raises(LockUsageError, match="header"):
                job.apply_async(("a",), headers={HEADER: header})
        with pytest.raises(LockUsageError, match="header"):
            job.apply_async(("a",), headers={HEADER: "text"}, lock={"ttl": 5})
    app.close()


def test_a_token_comes_from_the_main_process_only() -> None:
    """In the other pools a message that brings one would enter another execution's lock."""
    token = "0f" * 12
    request: dict[str, Any] = {"properties": {HEADER: "ff" * 12, "reply_to": "x"}}
    give_token(request, token)
    assert given_token(request["properties"]) == token
    remove_token(request)
    assert request["properties"] == {"reply_to": "x"}
    for properties in (None, {}, {HEADER: 7}, {HEADER: "short"}, {HEADER: ["x"]}, "text"):
        assert given_token(properties) == ""
        remove_token({"properties": properties})
