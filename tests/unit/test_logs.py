"""One line for each thing that matters, at its level, with the event's fields on the record."""

from __future__ import annotations

import logging
from typing import Any, get_args

import fakeredis
import pytest

from celery_locks import Holder, Locks, events, logs
from celery_locks.events import EventKind, emit
from celery_locks.types import Conflict

BUSY = Conflict("a", (Holder(token="x", task="bill", task_id="1", host="h", pid=5),), 3.0, 0)
DETAIL: dict[str, Any] = {
    "task": "bill",
    "task_id": "42",
    "waited": 0.5,
    "held_for": 2.0,
    "why": "the reason",
    "conflict": BUSY,
    "pause": 1.5,
    "decision": "raise",
    "remaining": 9.0,
    "pid": 77,
    "does": "runs",
    "limit": 3,
    "held_limit": 5,
    "rate": "api",
    "ahead": 3,
    "position": 2,
}


@pytest.fixture(autouse=True)
def nobody_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_subscribers", ())


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "celery_locks")
    return caplog


def test_every_kind_has_one_line_or_none(log: pytest.LogCaptureFixture) -> None:
    for kind in get_args(EventKind):
        log.clear()
        emit(kind, "a", "token", 7, **DETAIL)
        expected = [] if kind == "renewed" else [logs.LEVELS[kind]]
        assert [record.levelno for record in log.records] == expected, kind
        for record in log.records:
            assert "?" not in record.getMessage()


def test_line_without_details_is_still_a_line(log: pytest.LogCaptureFixture) -> None:
    """A recipe emits less than a task; that must not cost the event its subscribers."""
    for kind in logs.LEVELS:
        emit(kind, "a")  # type: ignore[arg-type]
    assert len(log.records) == len(logs.LEVELS)
    assert "failed on" not in log.text


@pytest.mark.parametrize(
    ("kind", "level", "words"),
    [
        ("acquired", "DEBUG", "lock 'a' is acquired after 0.500 s, with fence 7"),
        ("released", "DEBUG", "lock 'a' is released after 2.000 s"),
        ("skipped", "INFO", "task bill[42] is skipped: lock 'a' is held by task bill[1] on h"),
        ("requeued", "INFO", "task bill[42] is put back for 1.5 s: the reason (lock 'a')"),
        ("duplicate", "INFO", "task bill[42] is a duplicate of a queued or running call (raise)"),
        ("suspended", "WARNING", "could not be renewed, trying again for 9.0 s: the reason"),
        ("lost", "WARNING", "the lease on lock 'a' is lost: the reason"),
        ("unavailable", "WARNING", "lock 'a' could not be asked for: the reason"),
        ("unlocked", "WARNING", "task bill[42] runs without lock 'a'"),
        ("freed", "WARNING", "process 77 died holding lock 'a': it is freed"),
    ],
)
def test_line_says_what_happened(
    log: pytest.LogCaptureFixture, kind: Any, level: str, words: str
) -> None:
    emit(kind, "a", "token", 7, **DETAIL)
    [record] = log.records
    assert record.levelname == level
    assert words in record.getMessage()


def test_a_permanent_refusal_is_an_error_once_a_minute(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tasks that meet a wrong password are one thing for a person to correct."""
    clock = [5.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(logs, "_reported", {})

    def levels(why: str) -> list[str]:
        log.clear()
        for name in ("a", "b"):
            emit("unavailable", name, why=why, permanent=True)
        return [record.levelname for record in log.records]

    assert levels("WRONGPASS") == ["ERROR", "DEBUG"]
    assert levels("NOPERM") == ["ERROR", "DEBUG"], "another thing to correct"
    clock[0] += 59
    assert levels("WRONGPASS") == ["DEBUG", "DEBUG"]
    clock[0] += 1
    assert levels("WRONGPASS") == ["ERROR", "DEBUG"]


def test_release_that_came_too_late_says_so(log: pytest.LogCaptureFixture) -> None:
    emit("released", "a", "token", 7, held_for=2.0, ours=False)
    assert "lock 'a' was no longer ours to release, after 2.000 s" in log.text


def test_record_has_the_fields(log: pytest.LogCaptureFixture) -> None:
    """What a JSON formatter writes, so that nobody has to parse sentences."""
    emit("skipped", "a", "token", 7, **DETAIL)
    fields = vars(log.records[0])
    about = {"event": "skipped", "lock": "a", "token": "token", "fence": 7, "task": "bill"}
    assert fields.items() >= about.items()
    assert fields["task_id"] == "42"
    assert fields["holder"]["pid"] == 5
    assert "conflict" not in fields


def test_name_with_a_percent_sign_is_only_a_name(log: pytest.LogCaptureFixture) -> None:
    emit("acquired", "100%s %d %(x)s", "t", 1, waited=0.0)
    assert "100%s %d %(x)s" in log.records[0].getMessage()


def test_plain_use_is_logged_at_debug_only(log: pytest.LogCaptureFixture) -> None:
    locks = Locks(fakeredis.FakeRedis())
    with locks.hold("a") as lease:
        assert locks.acquire("a") is None
    lines = [(record.levelname, record.event) for record in log.records]  # type: ignore[attr-defined]
    assert lines == [("DEBUG", "acquired"), ("DEBUG", "conflict"), ("DEBUG", "released")]
    assert {record.fence for record in log.records} == {0, lease.fence}  # type: ignore[attr-defined]
    log.set_level(logging.INFO, "celery_locks")
    log.clear()
    with locks.hold("a"):
        pass
    assert log.records == []


def test_log_is_not_written_for_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the usual level an acquire makes no event at all."""
    caplog.set_level(logging.INFO, "celery_locks")
    monkeypatch.setattr(events, "LockEvent", None)
    emit("acquired", "a", "t", 1, waited=0.0)
    emit("renewed", "a")


def test_report_comes_once_a_minute_and_counts_what_was_left_out(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails many times a second must neither fill the disk nor look as if it had ended."""
    clock = [0.0]
    monkeypatch.setattr(logs, "now", lambda: clock[0])
    reports = logs.Reports()
    for moment in (0.0, 1.0, 59.0, 60.0, 61.0):
        clock[0] = moment
        reports.warning("lock %r is odd", "a%s")
        reports.warning("another thing")
    assert [record.getMessage() for record in log.records] == [
        "lock 'a%s' is odd",
        "another thing",
        "lock 'a%s' is odd (2 more of these since the last line)",
        "another thing (2 more of these since the last line)",
    ]


def test_report_of_a_failure_tells_errors_apart(log: pytest.LogCaptureFixture) -> None:
    reports = logs.Reports()
    for error in (KeyError("a"), KeyError("b"), ValueError("c")):
        try:
            raise error
        except Exception:
            reports.failure("it failed")
    assert [record.exc_info[0] for record in log.records if record.exc_info] == [
        KeyError,
        ValueError,
    ]


def test_task_that_a_paused_rate_limits_says_who_paused_it(log: pytest.LogCaptureFixture) -> None:
    emit("limited", "a", **DETAIL, paused="paused by ann: wrong data")
    assert log.messages == [
        "task bill[42] is limited by rate 'api' (raise), which is paused by ann: wrong data; it "
        "may ask again in 1.5 s (lock 'a')"
    ]
