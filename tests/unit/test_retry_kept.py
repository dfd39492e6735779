"""How long a lock is kept for the next attempt."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.exceptions import Retry

from celery_locks import LockedTask, current_lease
from celery_locks.errors import LockUnavailable
from celery_locks.integration.app import AppLocks
from celery_locks.integration.execution import Execution
from celery_locks.store.commands.requests import reservation_token
from celery_locks.testing import in_memory_locks
from tests.support.waiting import wait_until


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    "when",
    [
        lambda: 10,
        lambda: datetime.now(UTC) + timedelta(seconds=10),
        lambda: datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=10),
        lambda: datetime.now(timezone(timedelta(hours=-5))) + timedelta(seconds=10),
    ],
    ids=["countdown", "aware", "naive", "another zone"],
)
def test_a_lock_is_kept_until_the_retry_is_due_and_a_ttl_more(when: Any) -> None:
    execution = object.__new__(Execution)
    execution.options = SimpleNamespace(on_retry="keep", scope="running", ttl=3.0)  # type: ignore[assignment]
    execution.task = SimpleNamespace(app=Celery(set_as_current=False))
    assert execution._seconds_to_keep(Retry(when=when())) == pytest.approx(13, abs=1)


def test_a_reservation_that_could_not_be_kept_in_time_is_kept_under_its_own_token_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By which a revoke finds it."""
    locks = AppLocks(fakeredis.FakeRedis())
    lease = locks.acquire("a", ttl=60)
    assert lease
    perform = locks._store.perform

    def away(call: Any) -> Any:
        monkeypatch.setattr(locks._store, "perform", perform)
        raise LockUnavailable("away")

    monkeypatch.setattr(locks._store, "perform", away)
    with pytest.raises(LockUnavailable):
        locks.run(locks.operations.release(lease, (), 30.0, reservation_token("job")))
    wait_until(lambda: [h.token for h in locks.holders("a")] == [reservation_token("job")])
    locks.close()


def test_end_of_a_task_releases_its_lock_also_if_the_body_entered_it_and_did_not_leave() -> None:
    """A forgotten reentrant acquire must not keep the lock for as long as the worker lives."""
    app = Celery(set_as_current=False, broker="memory://")

    @app.task(base=LockedTask, shared=False, lock_key="a")
    def enter_again() -> bool:
        lease = locks.acquire("a", reentrant=True)
        return lease is current_lease()

    with in_memory_locks(app) as locks:
        assert enter_again.apply().get() is True
        assert locks.holders("a") == ()
    app.close()
