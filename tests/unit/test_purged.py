"""Which places in the queue are looked for, and what becomes of the answer, which is given here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from celery import Celery

from celery_locks import Locks, admin
from celery_locks.admin import stale_locks as leftovers
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
    """The ids that were looked for, time after time; every one of them is nowhere."""
    asked: list[set[str | None]] = []

    def find_lost_messages(app: Any, places: list[Holder], timeout: float) -> LostMessages:
        asked.append({place.task_id for place in places})
        return LostMessages(frozenset(place.task_id or "" for place in places))

    monkeypatch.setattr(leftovers, "find_lost_messages", find_lost_messages)
    monkeypatch.setattr(leftovers, "inspect_active", lambda *_, **__: ActiveReport())
    return asked


def take(locks: Locks, name: str, token: str, task_id: str, **said: Any) -> Any:
    alive = said.pop("alive", 0)
    holder = Holder(task_id=task_id, task="send", **{"retries": -1, **said})
    return locks.perform(locks.commands.acquire(LockSpec(name, 3600.0), token, holder, alive=alive))


def test_only_what_nobody_has_begun_is_looked_for(locks: Locks, asked: list[Any]) -> None:
    """A task that stands in line keeps its place until it has its lock: its message is done."""
    take(locks, "a (queued)", "qa", "waiting to begin")
    take(locks, "b (queued)", "qb", "in line")
    take(locks, "b", "b1", "at work", retries=0)
    take(locks, "b", "b2", "in line", retries=0, alive=60)
    swept = admin.sweep(locks, APP, queued_for=0.0)
    assert asked == [{"waiting to begin"}]
    assert [one.name for one in swept.freed] == ["a (queued)"]
    assert not locks.holders("a (queued)")
    assert locks.holders("b (queued)")


def test_a_place_that_was_taken_over_has_an_age_of_its_own() -> None:
    """``replace`` keeps the time of the first call; the new message is only being published."""
    old = Holder(token="q1", task_id="1", retries=-1, ttl=60.0, acquired_at=0.0, expires_at=60.0)
    new = Holder(token="q2", task_id="2", retries=-1, ttl=60.0, acquired_at=0.0, expires_at=99.0)
    retry = Holder(token="q3", task_id="3", retries=1, ttl=3.0, acquired_at=5.0, expires_at=3600.0)
    assert [leftovers._sent_at(holder) for holder in (old, new, retry)] == [0.0, 39.0, 5.0]


def test_young_places_are_not_looked_for(locks: Locks, asked: list[Any]) -> None:
    """They are taken before their message is sent."""
    take(locks, "a", "qa", "1")
    assert admin.sweep(locks, APP).freed == ()
    assert asked == [set()]


def test_stale_tells_of_each_place_once(locks: Locks, asked: list[Any]) -> None:
    """Also if it is listed for its age already; without an app nothing is looked for."""
    take(locks, "a", "qa", "1")
    [one] = admin.stale(locks, APP, older_than=-1, queued_for=0.0)
    assert one.liveness.verdict == "purged"
    assert one.sentence.startswith("It has been held for 0 s. Its message is in no queue")
    assert admin.stale(locks, queued_for=0.0) == []
    assert len(asked) == 1


def test_a_doubt_is_said_and_nothing_freed(
    locks: Locks, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take(locks, "a", "qa", "1")
    monkeypatch.setattr(
        leftovers, "find_lost_messages", lambda *_: LostMessages(trouble="the broker is away")
    )
    swept = admin.sweep(locks, APP, queued_for=0.0)
    assert swept.freed == ()
    left = "Locks of queued messages that were left alone: 1."
    assert swept.as_dict()["doubt"] == f"{left} The reason: the broker is away."
    assert locks.holders("a")
    found = admin.stale(locks, APP, queued_for=0.0)
    assert (found, found.doubt) == ([], swept.doubt)
