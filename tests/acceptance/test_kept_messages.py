"""``keep_message=True``: a message that the broker has lost is published again, and runs once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_locks import admin
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, rig_on
from tests.support.waiting import wait_until

# Celery's result backend uses what redis-py 8.1 calls deprecated, here in the caller's process.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

# A search is begun within a second or two, and takes a few seconds; the machine may be busy.
LONG = 3 * PATIENCE
KEPT = {"keep_message": True}
# Seconds: a search that has found messages to search for is claimed for longer, else not.
CLAIMED = 5.0

_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    return f"kept-{next(_numbers)}"


@contextmanager
def searching_rig(**conf: Any) -> Iterator[Rig]:
    """A rig whose workers search once a second."""
    with EmbeddedServer() as server, rig_on(server, locks_recover_after=1.0, **conf) as rig:
        yield rig


def kept(rig: Rig) -> int:
    return int(rig.redis.hlen("celery-locks:{0}:kept"))


def lose_queue(rig: Rig) -> None:
    """Delete the queued messages, as a broker does that restarts without its data."""
    assert rig.redis.delete("celery") == 1


def wait_done(rig: Rig, result: Any) -> None:
    assert result.get(timeout=LONG) is not None
    wait_until(lambda: kept(rig) == 0, LONG, what="nothing to be kept")
    assert [it["id"] for it in rig.starts()].count(result.id) == 1


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_lost_message_is_published_again(key: str, scope: str) -> None:
    """A broker that forgets its queue must not lose the job."""
    with searching_rig() as rig:
        result = rig.task("sent").apply_async((key, "value"), lock={**KEPT, "scope": scope})
        lose_queue(rig)
        assert kept(rig) == 1
        with rig.worker() as worker:
            wait_done(rig, result)
            line = "was lost by the broker and is published again"
            wait_until(lambda: line in worker.log, LONG, what="the line in the log")
        assert rig.locks.info(key) is None


def test_search_of_a_killed_worker_is_taken_over(key: str) -> None:
    """A worker that is killed while it searches must not keep the others from it for minutes."""

    def is_searching() -> bool:
        return rig.redis.pttl("celery-locks:{0}:search") > CLAIMED * 1000

    with searching_rig() as rig:
        result = rig.task("sent").apply_async((key, "value"), lock=KEPT)
        lose_queue(rig)
        with rig.worker() as worker:
            wait_until(is_searching, LONG, what="a search")
            worker.kill()
        assert kept(rig) == 1
        assert not rig.redis.exists("celery")
        with rig.worker():
            wait_done(rig, result)


def test_message_in_the_queue_is_left_alone(key: str) -> None:
    """A message that waits for a busy worker, or for its time, is not lost."""
    with searching_rig() as rig, rig.worker(concurrency=1) as worker:
        rig.wait_started(rig.task("work").delay("blocker", "gate"))
        results = [
            rig.task("sent").apply_async((f"{key}-{n}", n + 1), lock=KEPT, countdown=n * 3)
            for n in range(3)
        ]
        # At least two searches with these messages in the queue and in the worker.
        wait_until(
            lambda: rig.redis.pttl("celery-locks:{0}:search") > 0, LONG, what="a first search"
        )
        wait_until(lambda: not rig.redis.exists("celery-locks:{0}:search"), LONG, what="its end")
        wait_until(
            lambda: rig.redis.pttl("celery-locks:{0}:search") > 0, LONG, what="a second search"
        )
        rig.open("gate")
        for result in results:
            wait_done(rig, result)
        assert "was lost by the broker" not in worker.log


def test_message_that_was_parked_is_kept_until_it_starts(key: str) -> None:
    """Between its wake-up and its start a message is only with the broker, which may lose it."""
    lock = {**KEPT, "on_conflict": "park", "scope": "queued+running"}
    with searching_rig() as rig, rig.worker("-Q", "another") as waker:
        with rig.locks.hold(key):
            result = rig.task("sent").apply_async((key, "value"), lock=lock)
        wait_until(lambda: kept(rig) == 1, LONG, what="the message to be woken and confirmed")
        lose_queue(rig)
        wait_until(lambda: rig.redis.llen("celery") == 1, LONG, what="it to be published again")
        line = "was lost by the broker and is published again"
        wait_until(lambda: line in waker.log, LONG, what="the line in the log")
        with rig.worker():
            wait_done(rig, result)


def test_kept_message_that_is_revoked_is_not_published_again(key: str) -> None:
    """Whatever ends the reservation also ends the kept message."""
    with searching_rig() as rig:
        result = rig.task("sent").apply_async((key, "value"), lock=KEPT)
        lose_queue(rig)
        admin.force_release(rig.locks, key, reason="not wanted")
        with rig.worker() as worker:
            wait_until(lambda: kept(rig) == 0, LONG, what="the kept message to be deleted")
            assert "was lost by the broker" not in worker.log
        assert not rig.starts()
        assert result.state == "PENDING"


def test_sweep_leaves_the_reservation_of_a_kept_message(key: str) -> None:
    """An operator's sweep must not discard the job that a worker is about to publish again."""
    with searching_rig() as rig:
        rig.task("sent").apply_async((key, "value"), lock=KEPT)
        rig.task("also_sent").apply_async((f"{key}-other",))
        lose_queue(rig)
        swept = admin.sweep(rig.locks, rig.app, queued_for=0.0, timeout=1.0)
        assert [lock.name for lock in swept.freed] == [f"{key}-other"]
        assert rig.locks.info(key) is not None
