"""Which reservations are searched, and what follows from the answer, which the tests give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from celery import Celery

from celery_locks import Locks, admin
from celery_locks.admin import lost_reservations, stale_locks
from celery_locks.integration.broker_search import LostMessages
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.types import Holder, LockSpec

APP = Celery("t", broker="memory://", set_as_current=False)


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str | None]]:
    """The ids that were looked for, time after time; every lock of them is nowhere."""
    asked: list[set[str | None]] = []

    def find_lost_messages(app: Any, reservations: list[Holder], timeout: float) -> LostMessages:
        asked.append({holder.task_id for holder in reservations})
        return LostMessages(frozenset(holder.task_id or "" for holder in reservations))

    monkeypatch.setattr(lost_reservations, "find_lost_messages", find_lost_messages)
    monkeypatch.setattr(stale_locks, "inspect_active", lambda *_, **__: ActiveReport())
    return asked


def take(locks: Locks, name: str, token: str, task_id: str, **fields: Any) -> Any:
    alive = fields.pop("alive", 0)
    holder = Holder(task_id=task_id, task="send", **{"retries": -1, **fields})
    return locks.perform(locks.commands.acquire(LockSpec(name, 3600.0), token, holder, alive=alive))


def test_only_what_nobody_has_begun_is_looked_for(locks: Locks, asked: list[Any]) -> None:
    """A task that waits keeps its reservation until it has its lock: its message is gone."""
    take(locks, "a (queued)", "qa", "waiting to begin")
    take(locks, "b (queued)", "qb", "in line")
    take(locks, "b", "b1", "at work", retries=0)
    take(locks, "b", "b2", "in line", retries=0, alive=60)
    swept = admin.sweep(locks, APP, queued_for=0.0)
    assert asked == [{"waiting to begin"}]
    assert [lock.name for lock in swept.freed] == ["a (queued)"]
    assert not locks.holders("a (queued)")
    assert locks.holders("b (queued)")


def test_a_reservation_that_was_replaced_has_an_age_of_its_own() -> None:
    """``replace`` keeps the time of the first call; the new message is only being published."""
    old = Holder(token="q1", task_id="1", retries=-1, ttl=60.0, acquired_at=0.0, expires_at=60.0)
    new = Holder(token="q2", task_id="2", retries=-1, ttl=60.0, acquired_at=0.0, expires_at=99.0)
    retry = Holder(token="q3", task_id="3", retries=1, ttl=3.0, acquired_at=5.0, expires_at=3600.0)
    assert [lost_reservations._published_at(holder) for holder in (old, new, retry)] == [
        0.0,
        39.0,
        5.0,
    ]


def test_young_reservations_are_not_looked_for(locks: Locks, asked: list[Any]) -> None:
    """They are taken before their message is sent."""
    take(locks, "a", "qa", "1")
    assert admin.sweep(locks, APP).freed == ()
    assert asked == [set()]


def test_stale_reports_each_reservation_once(locks: Locks, asked: list[Any]) -> None:
    """Also if it is listed for its age already; without an app nothing is looked for."""
    take(locks, "a", "qa", "1")
    [lock] = admin.stale(locks, APP, older_than=-1, queued_for=0.0)
    assert lock.liveness.verdict == "purged"
    assert lock.sentence.startswith("It has been held for 0 s. Its message is in no queue")
    assert admin.stale(locks, queued_for=0.0) == []
    assert len(asked) == 1


def test_an_inconclusive_search_releases_nothing(
    locks: Locks, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take(locks, "a", "qa", "1")
    monkeypatch.setattr(
        lost_reservations,
        "find_lost_messages",
        lambda *_: LostMessages(trouble="the broker is away"),
    )
    swept = admin.sweep(locks, APP, queued_for=0.0)
    assert swept.freed == ()
    left = "Locks of queued messages that were left alone: 1."
    assert swept.as_dict()["doubt"] == f"{left} Reason: the broker is away."
    assert locks.holders("a")
    found = admin.stale(locks, APP, queued_for=0.0)
    assert (found, found.inconclusive) == ([], swept.inconclusive)
