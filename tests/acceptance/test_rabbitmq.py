"""RabbitMQ as broker, Redis as lock server and for results, without containers.

RabbitMQ has no visibility timeout: it gives an unacknowledged message out again when the
connection that had it is gone, with the redelivered flag set.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, Worker, rig_on
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def place(rabbitmq: RabbitMQ) -> Iterator[tuple[Rig, Proxy, Worker]]:
    """The worker reaches its broker through a proxy, the test directly."""
    with (
        EmbeddedServer() as server,
        Proxy(rabbitmq.host, rabbitmq.port) as proxy,
        rig_on(server, broker_url=rabbitmq.url) as rig,
        rig.worker(broker_url=rabbitmq.url_at(proxy.port), concurrency=3) as worker,
    ):
        yield rig, proxy, worker


@pytest.fixture
def rig(place: tuple[Rig, Proxy, Worker]) -> Rig:
    return place[0]


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def test_the_locks_are_kept_with_the_results(rig: Rig, key: str) -> None:
    """Nothing to configure: the broker is no Redis, the result backend is."""
    assert rig.task("work").delay(key).get(timeout=PATIENCE) == key
    assert rig.starts()[-1]["lock"] == key


def test_a_conflict_is_skipped_with_its_holder(rig: Rig, key: str) -> None:
    first = rig.task("work").delay(key, key)
    rig.wait_started(first)
    skipped = rig.task("work").delay(key).get(timeout=PATIENCE)
    assert skipped["holder"]["task_id"] == first.id
    rig.open(key)
    assert first.get(timeout=PATIENCE) == key


def test_a_conflict_is_requeued_and_runs(rig: Rig, key: str) -> None:
    with rig.locks.hold(key):
        result = rig.task("work").apply_async([key], lock={"on_conflict": "requeue"})
        rig.wait_event("requeued", key)
    assert result.get(timeout=PATIENCE) == key
    assert len(rig.starts(result.id)) == 1


def test_a_killed_child_frees_the_lock_and_the_job_runs_again(rig: Rig, key: str) -> None:
    """kill -9: the lock is free at once; Celery gives the message back, which comes redelivered."""
    result = rig.task("stubborn").delay(key, key)
    first = rig.wait_started(result)
    os.kill(first["pid"], signal.SIGKILL)
    rig.wait_started(result, times=2)
    rig.open(key)
    assert result.get(timeout=PATIENCE) == key
    rig.wait_free(key)
    assert len(rig.starts(result.id)) == 2


def test_a_broken_connection_does_not_run_the_job_twice(
    place: tuple[Rig, Proxy, Worker], key: str
) -> None:
    """The broker gives the message out again while the original still runs."""
    rig, proxy, worker = place
    result = rig.task("late").delay(key, key)
    rig.wait_started(result)
    proxy.cut()
    rig.wait_event("requeued", key)
    assert len(rig.starts(result.id)) == 1
    rig.open(key)
    assert result.get(timeout=PATIENCE) == key
    wait_until(
        lambda: f"[{result.id}] has run already" in worker.log,
        PATIENCE,
        what="the copy to drop out",
    )
    assert [entry["what"] for entry in rig.journal(result.id)] == ["start", "end", "success"]
