"""What workers answered a moment ago, held against holders as they are seen now."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.admin.liveness import judge, verdict_of
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.types import Holder
from celery_locks.web.context import WebContext

AT = 1000.0


def holder(acquired_at: float = AT - 50, **said: Any) -> Holder:
    usual = {"ttl": 30.0, "expires_at": AT + 30, "task_id": "t", "worker": "w"}
    return Holder(token="x", acquired_at=acquired_at, **{**usual, **said})


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


def test_site_says_where_the_locks_are_and_never_a_password() -> None:
    """Production and staging must not look the same; a screenshot must not give access."""
    locks = Locks.from_url("redis://ann:s3cret@redis.prod:6380/4", prefix="shop")
    where = WebContext.of(locks).location()
    assert where == {"app_name": None, "server": "redis.prod:6380", "db": 4, "prefix": "shop"}
    locks.close()
