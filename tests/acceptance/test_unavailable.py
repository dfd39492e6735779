"""The lock server is away, with real workers: each answer is visible, and no task is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from celery_locks import LockUnavailable
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, Worker, rig_on
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


class Place:
    """A broker behind a proxy, a lock server of its own, and a worker."""

    def __init__(self, rig: Rig, broker: Proxy, lock_server: EmbeddedServer) -> None:
        self.rig = rig
        self.broker = broker
        self.lock_server = lock_server
        self.worker: Worker


@pytest.fixture(scope="module", params=["prefork", "threads"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with (
        EmbeddedServer() as server,
        # It keeps its data: what a loss of it does is another question (test_data_loss.py).
        EmbeddedServer(appendonly="always") as lock_server,
        Proxy(server.host, server.port) as broker,
        rig_on(server, locks_url=lock_server.url) as rig,
    ):
        place = Place(rig, broker, lock_server)
        with rig.worker(pool=request.param, broker_url=broker.url) as place.worker:
            yield place


@pytest.fixture(params=["killed", "paused"])
def away(request: pytest.FixtureRequest, place: Place) -> Iterator[None]:
    """Refused at once, or no answer at all; back when the test ends."""
    # One task first: the worker has an open connection, as in life.
    assert place.rig.task("work").delay("warm").get(timeout=PATIENCE) == "warm"
    if request.param == "killed":
        place.lock_server.kill()
        place.back = place.lock_server.restart  # type: ignore[attr-defined]
    else:
        place.lock_server.pause()
        place.back = place.lock_server.resume  # type: ignore[attr-defined]
    yield
    if request.param == "killed" and not place.lock_server.is_running:
        place.lock_server.restart()
    place.lock_server.resume()


def test_requeued_tasks_run_once_it_is_back(place: Place, away: None, key: str) -> None:
    """The default: nothing is lost, nothing runs unlocked, and no slot is taken up."""
    rig = place.rig
    results = [rig.task("work").delay(f"{key}-{n}") for n in range(3)]
    for n in range(3):
        rig.wait_event("requeued", f"{key}-{n}")
    assert not [entry for entry in rig.starts() if key in str(entry["lock"])]
    assert rig.task("echo").delay("free").get(timeout=PATIENCE) == "free"
    place.back()  # type: ignore[attr-defined]
    assert [result.get(timeout=PATIENCE) for result in results] == [f"{key}-{n}" for n in range(3)]
    assert all(len(rig.starts(result.id)) == 1 for result in results)


def test_a_task_may_run_unlocked(place: Place, away: None, key: str) -> None:
    """``run``: said in the log and as an event; ``self.lock`` is there, with nothing to lose."""
    rig = place.rig
    result = rig.task("work").apply_async([key], lock={"on_unavailable": "run"})
    assert result.get(timeout=PATIENCE) == key
    [start] = rig.starts(result.id)
    assert (start["lock"], start["fence"]) == (None, 0)
    assert len(rig.events("unlocked", key)) == 1
    assert f"work[{result.id}] runs without lock '{key}'" in place.worker.log


def test_a_task_may_fail(place: Place, away: None, key: str) -> None:
    """``fail``: the caller is told what is the matter."""
    result = place.rig.task("work").apply_async([key], lock={"on_unavailable": "fail"})
    with pytest.raises(LockUnavailable):
        result.get(timeout=PATIENCE)
    assert place.rig.starts(result.id) == []


def test_a_task_survives_that_both_servers_are_away(place: Place, key: str) -> None:
    """It was acknowledged when it started, and cannot be put back now: it must not be lost."""
    rig = place.rig
    place.lock_server.pause()
    try:
        result = rig.task("work").delay(key)
        wait_until(
            lambda: f"[{result.id}] received" in place.worker.log,
            PATIENCE,
            what="the worker to have it",
        )
        wait_until(lambda: rig.redis.hlen("unacked") == 0, PATIENCE, what="its acknowledgement")
        place.broker.refuse()
        place.broker.cut()
        rig.wait_event("unavailable", key)
        wait_until(
            lambda: "cannot be requeued" in place.worker.log, PATIENCE, what="the worker to say so"
        )
    finally:
        print(place.worker.log[-3000:])  # shown when the test fails
        place.broker.pass_through()
        place.lock_server.resume()
    assert result.get(timeout=PATIENCE) == key
    assert len(rig.starts(result.id)) == 1


def test_a_release_that_fails_does_not_fail_the_task(place: Place, key: str) -> None:
    """The work is done and its result counts; the lock is given back as soon as it can be."""
    rig = place.rig
    result = rig.task("work").apply_async([key, key], lock={"ttl": 30, "on_lost": "warn"})
    rig.wait_started(result)
    place.lock_server.pause()
    try:
        rig.open(key)
        wait_until(
            lambda: f"lock '{key}' is released as soon" in place.worker.log,
            PATIENCE,
            what="the release to fail",
        )
    finally:
        place.lock_server.resume()
    # self.lock.check() passed before; afterwards nothing asks for the lock.
    assert result.get(timeout=PATIENCE) == key
    rig.wait_free(key)
