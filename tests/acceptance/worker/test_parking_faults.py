"""Parked tasks while servers fail: none is lost, and none runs twice."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_locks.integration.message_text import publish_message, record_message
from tests.servers.embedded import EmbeddedServer
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support.celery_worker import PATIENCE, Rig, rig_on
from tests.support.parking_rig import (
    LONG,
    PARK,
    assert_one_at_a_time,
    assert_ran_in_order,
    park,
    wait_nothing_parked,
    wait_parked,
)
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import wait_until
from tests.support.worker import Worker as Stranger

_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    return f"park-{next(_numbers)}"


@contextmanager
def rig_with_broker(**conf: object) -> Iterator[tuple[Rig, EmbeddedServer]]:
    """A rig with a broker of its own; locks and results are on the rig's server."""
    with EmbeddedServer() as broker, EmbeddedServer() as server:
        with rig_on(
            server, **{"broker_url": broker.url, "locks_url": server.url, "locks_ttl": 30, **conf}
        ) as rig:
            yield rig, broker


def test_broker_that_is_away_while_tasks_are_woken_loses_none(key: str) -> None:
    """The broker comes back without its messages: the parked ones are elsewhere."""
    with rig_with_broker() as (rig, broker), rig.worker(concurrency=2) as worker:
        with rig.locks.hold(key):
            results = park(rig, key, 3)
            broker.kill()
        wait_until(
            lambda: "cannot be published now" in worker.log, LONG, what="a failed publication"
        )
        broker.restart()
        assert_ran_in_order(rig, key, results)


def test_frozen_lock_server_keeps_parked_tasks(key: str) -> None:
    with rig_with_broker() as (rig, _), rig.worker(concurrency=2) as worker:
        with rig.locks.hold(key):
            results = park(rig, key, 3)
        rig.server.pause()
        wait_until(lambda: "parked tasks are not woken now" in worker.log, LONG, what="a warning")
        rig.server.resume()
        assert_ran_in_order(rig, key, results)


def test_restarted_lock_server_with_persistence_keeps_parked_tasks(key: str) -> None:
    with (
        EmbeddedServer() as broker,
        EmbeddedServer(appendonly="always") as locks_server,
        rig_on(broker, locks_url=locks_server.url, locks_ttl=30) as rig,
        rig.worker(concurrency=2),
    ):
        lease = rig.locks.acquire(key)
        assert lease
        results = [rig.task("work").apply_async((key,), lock=PARK)]
        wait_parked(rig, key, 1)
        results += park(rig, key, 2)
        locks_server.restart()
        wait_until(lambda: lease.release() or not rig.locks.holders(key), PATIENCE)
        for result in results:
            assert result.get(timeout=LONG) == key
        assert_one_at_a_time(rig, key)
        assert [it["id"] for it in rig.starts()] == [it.id for it in results]


def test_parked_tasks_survive_a_failover_of_sentinel(key: str) -> None:
    """What the replica had: a failover loses what was not replicated yet."""
    with (
        EmbeddedServer() as broker,
        EmbeddedSentinel() as sentinel,
        rig_on(broker, locks_url=sentinel.url, locks_ttl=30) as rig,
        rig.worker(concurrency=2),
    ):
        lease = rig.locks.acquire(key)
        assert lease
        results = park(rig, key, 3)
        old = sentinel.primary
        with old.client() as client:
            assert client.wait(1, 20_000) == 1
        old.kill()
        sentinel.wait_failover(old)
        wait_until(lambda: lease.release() or not rig.locks.holders(key), LONG)
        for result in results:
            assert result.get(timeout=LONG) == key
        assert_one_at_a_time(rig, key)
        assert len(rig.starts()) == 3


def test_failover_of_sentinel_while_a_task_is_woken(key: str) -> None:
    """A worker has taken the message and cannot publish it; another server has its reservation."""
    with (
        EmbeddedServer() as broker,
        EmbeddedServer() as results_server,
        EmbeddedSentinel() as sentinel,
        rig_on(results_server, broker_url=broker.url, locks_url=sentinel.url, locks_ttl=30) as rig,
        rig.worker(concurrency=2),
    ):
        lease = rig.locks.acquire(key)
        assert lease
        results = park(rig, key, 3)
        broker.pause()
        lease.release()
        old = sentinel.primary
        with old.client() as client:
            wait_until(lambda: is_being_woken(client), LONG, what="a worker to take the message")
            assert client.wait(1, 20_000) == 1
        old.kill()
        sentinel.wait_failover(old)
        broker.resume()
        for result in results:
            assert result.get(timeout=LONG) == key
        assert_one_at_a_time(rig, key)
        assert [it["id"] for it in rig.starts()] == [it.id for it in results]


def is_being_woken(client: Any) -> bool:
    """Return True if a worker has taken a message and not confirmed it (TAKEN in poll_due.lua)."""
    due = client.zrange("celery-locks:{0}:due", 0, -1, withscores=True)
    return any(at % 1 == 0.5 for member, at in due if not member.startswith(b"n"))


def test_parked_tasks_on_a_cluster(cluster: EmbeddedCluster, key: str) -> None:
    cluster.flush()
    conf = {"locks_url": cluster.url, "locks_ttl": 30}
    with EmbeddedServer() as broker, rig_on(broker, **conf) as rig, rig.worker(concurrency=2):
        names = [f"{key}-{number}" for number in range(6)]
        leases = [rig.locks.acquire(name) for name in names]
        results = {name: park(rig, name, 2) for name in names}
        for lease in leases:
            assert lease
            lease.release()
        for name in names:
            for result in results[name]:
                assert result.get(timeout=LONG) == name
            assert_one_at_a_time(rig, name)
        ran = [it["id"] for it in rig.starts()]
        assert sorted(ran) == sorted(it.id for each in results.values() for it in each)


def test_parked_tasks_with_rabbitmq(rabbitmq: RabbitMQ, key: str) -> None:
    """Also if the connection is cut while tasks are woken: a copy that comes twice runs once."""
    with (
        EmbeddedServer() as server,
        Proxy(rabbitmq.host, rabbitmq.port) as proxy,
        rig_on(server, broker_url=rabbitmq.url, locks_ttl=30) as rig,
        rig.worker(broker_url=rabbitmq.url_at(proxy.port), concurrency=2),
    ):
        with rig.locks.hold(key):
            results = park(rig, key, 3, task="late")
            proxy.cut()
        for result in results:
            assert result.get(timeout=LONG) == key
        assert_one_at_a_time(rig, key)
        assert [it["id"] for it in rig.starts()] == [it.id for it in results]
        wait_nothing_parked(rig)


def test_publish_of_a_woken_task_waits_for_the_confirmation_of_rabbitmq(
    rabbitmq: RabbitMQ, key: str
) -> None:
    """Otherwise a message that the broker never got would be confirmed, and lost."""
    with Proxy(rabbitmq.host, rabbitmq.port) as proxy:
        app = Celery("one", broker=rabbitmq.url_at(proxy.port), set_as_current=False)
        app.conf.task_default_queue = key

        @app.task(name="one", shared=False)
        def one() -> None: ...

        text, _ = record_message(app, one.s().apply_async)
        publish_message(app, text)
        proxy.drop_replies()
        began = time.monotonic()
        with pytest.raises((OperationalError, OSError)):
            publish_message(app, text)
        assert time.monotonic() - began < PATIENCE
        proxy.pass_through()
        proxy.cut()
        publish_message(app, text)
        with app.connection() as connection:
            count = connection.default_channel.queue_declare(key, passive=True).message_count
        assert count >= 2
        app.close()


def test_app_with_another_broker_does_not_publish_what_it_does_not_know(key: str) -> None:
    """Two apps may share a lock server: a message in the wrong broker would be lost."""
    with (
        rig_with_broker() as (rig, _),
        EmbeddedServer() as other_broker,
        rig.worker(concurrency=1) as worker,
        Stranger(
            "tests.support.several_app",
            concurrency=1,
            env={"SEVERAL_URL": other_broker.url, "SEVERAL_LOCKS_URL": rig.server.url},
        ) as stranger,
    ):
        with rig.locks.hold(key):
            results = park(rig, key, 3)
            worker.signal(signal.SIGSTOP)
        # Only the other app polls now, and finds that the lock is free.
        wait_until(lambda: rig.locks.holders(key), LONG, what="a woken message")
        woken = time.monotonic()
        wait_until(lambda: time.monotonic() > woken + 4, what="two polls of the other app")
        worker.signal(signal.SIGCONT)
        assert_ran_in_order(rig, key, results)
        assert "unregistered" not in stranger.log()
