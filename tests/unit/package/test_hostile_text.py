"""Names, ids and reasons are anybody's text: none of it may forge a line in a log or an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from celery import Celery

from celery_locks import Holder, LockedTask, errors, events, logs
from celery_locks.core.idempotency import RESULT_BYTES, Codec, Once
from celery_locks.core.lease import Lease
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.events import EventKind, emit
from celery_locks.printable_text import printable
from celery_locks.testing import in_memory_locks
from celery_locks.types import Conflict, LockSpec, Revocation

EVIL = "a\r\n[2026-01-01 00:00:00: CRITICAL/MainProcess] FORGED\x1b[31m\u202e\u2028\x85\x07"
HOLDER = Holder(token=EVIL, task_id=EVIL, task=EVIL, worker=EVIL, host=EVIL, pid=1, expires_at=9.0)
CONFLICT = Conflict(EVIL, (HOLDER, HOLDER), 3.0, 1)


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Whatever a test has logged is one printable line each."""
    caplog.set_level(logging.DEBUG, "celery_locks")
    yield caplog
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 中", "plain é 中"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
    ],
)
def test_printable_writes_out_what_does_something(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("kind", get_args(EventKind))
def test_events_of_hostile_names_are_single_lines(
    kind: EventKind, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_subscribers", ())
    detail: dict[str, Any] = dict.fromkeys(("task", "task_id", "why", "decision", "does"), EVIL)
    emit(kind, EVIL, EVIL, 7, conflict=CONFLICT, pid=EVIL, **detail)
    assert len(lines.records) == (kind in logs.LEVELS)
    logs.log_deferred_release(EVIL, errors.LockUnavailable(EVIL))


@pytest.mark.parametrize(
    "error",
    [
        errors.LockConflict(CONFLICT),
        errors.AlreadyQueued(CONFLICT),
        errors.TaskLockAcquireError(CONFLICT),
        errors.LeaseLost(EVIL, EVIL),
        errors.LockRevoked(EVIL, EVIL, EVIL),
        errors.StopRequested(EVIL),
        errors.AlreadyDone(EVIL, EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_about_hostile_names_are_single_lines(error: Exception) -> None:
    """Celery logs what a task raises."""
    assert str(error).isprintable()
    assert repr(error).isprintable()


def test_loss_of_a_revoked_lease_is_a_single_line() -> None:
    """An operator's reason ends in the log of the holder's worker."""
    lease = Lease(LockSpec(EVIL, 30), "t", 1, 0.0)
    lease.lose(EVIL, Revocation(EVIL, EVIL))
    assert lease.reason.isprintable()
    assert "FORGED" in lease.reason, "what was said is still there"


def test_lines_about_results_that_are_not_kept_are_single_lines(
    lines: pytest.LogCaptureFixture,
) -> None:
    """The lock's name is made of what users send."""

    def fails(_: Any) -> Any:
        raise ValueError(EVIL)

    broken = Once(f"o:{EVIL}", 60, "failed_only", Codec(fails, fails))
    assert broken.completed_mark("t", 1).value == "nt "
    assert not broken.repeat("rt x").has_result
    large = Once(f"o:{EVIL}", 60, "failed_only", Codec(lambda _: "x" * (RESULT_BYTES + 1), fails))
    assert large.completed_mark("t", 1).value == "nt "
    assert len(lines.records) == 3


def test_line_about_a_debt_is_a_single_line(lines: pytest.LogCaptureFixture) -> None:
    debt: Any = PendingRelease(EVIL, "t", None, None, 0.0)  # type: ignore[arg-type]
    debt.trouble = EVIL
    debt.log_if_unreleased()
    assert len(lines.records) == 1


@pytest.mark.parametrize("key", [EVIL, "\ud800"])
def test_task_with_a_hostile_argument_logs_single_lines(
    key: str, lines: pytest.LogCaptureFixture
) -> None:
    """A lone surrogate is valid JSON and no valid name: refused once, with nothing to give back."""
    app = Celery("hostile", broker="memory://", backend="cache+memory://", set_as_current=False)

    options = {"lock_key": "job:{key}", "lock_scope": "queued+running", "shared": False}

    @app.task(name="job", base=LockedTask, **options)
    def job(key: str) -> None: ...

    with in_memory_locks(app):
        result = job.apply((key,), task_id="id")
        if key != EVIL:
            assert "has no UTF-8 form" in str(result.result)
            with pytest.raises(errors.LockUsageError, match="has no UTF-8 form"):
                job.delay(key)
        renewer.wait_idle(5)
    ours = [record for record in lines.records if record.name == "celery_locks"]
    assert not [record for record in ours if record.levelno >= logging.WARNING]
    app.close()
