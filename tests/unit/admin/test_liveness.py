"""What workers answered a moment ago, held against holders as they are seen now."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Locks, admin
from celery_locks.admin.liveness import judge, verdict_of
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.types import Holder
from tests.support.held_locks import take

AT = 1000.0


def holder(acquired_at: float = AT - 50, **fields: Any) -> Holder:
    usual = {"ttl": 30.0, "expires_at": AT + 30, "task_id": "t", "worker": "w"}
    return Holder(token="x", acquired_at=acquired_at, **{**usual, **fields})


RUNS, IDLE, SILENT = {"w": {"t": 7}}, {"w": {}}, {}


@pytest.mark.parametrize(
    ("running", "acquired_at", "as_of", "verdict"),
    [
        (RUNS, AT - 50, AT + 3, "running"),
        (IDLE, AT - 50, AT + 3, "absent"),
        (SILENT, AT - 50, AT + 3, "silent"),
        # The lock was taken after the worker was asked: the answer says nothing about it.
        (IDLE, AT + 1, AT + 3, "renewed"),
        (SILENT, AT + 1, AT + 3, "renewed"),
        # We saw the lock before we asked: the task may have ended in between.
        (IDLE, AT - 50, AT - 1, "renewed"),
    ],
)
def test_judge_believes_an_older_answer_only_as_far_as_it_goes(
    running: Any, acquired_at: float, as_of: float, verdict: str
) -> None:
    """A list that calls healthy holders dead for a second is not believed when it matters."""
    report = ActiveReport(running, queried=frozenset({"w"}), at=AT)
    found = judge(holder(acquired_at, expires_at=as_of + 30), as_of, report)
    assert found.verdict == verdict
    assert verdict_of(found.holder, as_of, report) == verdict


def test_judge_says_nothing_of_a_worker_that_was_not_asked() -> None:
    """It joined a moment ago, and is asked the next time."""
    report = ActiveReport({}, queried=frozenset({"other"}), at=AT)
    found = judge(holder(), AT + 1, report)
    assert found.verdict == "renewed"
    assert "has not answered since" in found.sentence


def held(**fields: Any) -> Holder:
    """A holder of a ttl of 30 s, acquired at 1000 and renewed at 1090 by the server's clock."""
    usual = {"ttl": 30.0, "acquired_at": 1000.0, "expires_at": 1120.0, "task_id": "t"}
    return Holder(token="x", worker="w", pid=7, **{**usual, **fields})


ALIVE = ActiveReport({"w": {"t": 7}})


@pytest.mark.parametrize(
    ("holder", "as_of", "worker_reports", "verdict"),
    [
        (held(), 1091, ALIVE, "running"),
        (held(), 1119, ALIVE, "running"),
        (held(), 1091, ActiveReport({"w": {"u": 7}}), "absent"),
        (held(), 1091, ActiveReport({"v": {}}), "silent"),
        (held(), 1106, ActiveReport({"v": {}}), "gone"),
        (held(), 1106, ActiveReport(trouble="no broker"), "late"),
        (held(), 1091, ActiveReport(trouble="no broker"), "renewed"),
        (held(), 1106, None, "late"),
        (held(), 1091, None, "renewed"),
        (held(retries=-1), 1119, ActiveReport({}), "queued"),
        # Handed over a moment ago, with a claim of a second.
        (held(acquired_at=1119, expires_at=1120), 1119.5, ActiveReport({}), "silent"),
    ],
)
def test_verdict(
    holder: Holder, as_of: float, worker_reports: ActiveReport | None, verdict: str
) -> None:
    """Dead is only who is silent and does not renew either."""
    assert judge(holder, as_of, worker_reports).verdict == verdict


def test_verdict_says_another_pid() -> None:
    other = judge(held(), 1091, ActiveReport({"w": {"t": 8}}))
    assert "but in pid 8" in other.sentence
    assert "in pid 7" in judge(held(), 1091, ALIVE).sentence


def test_verdict_of_the_rest_of_at_least() -> None:
    kept = Holder(token="-x", ttl=30, expires_at=1120, worker="w")
    assert judge(kept, 1119, ActiveReport({})).verdict == "ended"


def test_info_judges_each_holder(locks: Locks, worker_reports: Any) -> None:
    take(locks, "s", "1", limit=2, worker="w", task_id="t", pid=7)
    take(locks, "s", "2", limit=2, worker="v", task_id="u")
    asked = worker_reports(ALIVE)
    detail = admin.info(locks, "s", app=object())
    assert detail
    assert {(one.holder.token, one.verdict) for one in detail.liveness} == {
        ("1", "running"),
        ("2", "silent"),
    }
    assert asked == [{"v", "w"}]
    fields = detail.as_dict()
    assert {h["liveness"]["verdict"] for h in fields["holders"]} == {"running", "silent"}
    assert admin.info(locks, "free") is None
