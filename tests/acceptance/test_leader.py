"""Two real workers: one is the leader, its pool knows it, the other takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer
from tests.support.beat_app import CONF_VARIABLE, TERMS, app
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until
from tests.support.worker import Worker

PATIENCE = 60.0
TTL = 3.0


def make_worker(server: EmbeddedServer, pool: str = "prefork", ttl: float = TTL) -> Worker:
    conf = {"locks_ttl": ttl}
    env = {"CELERY_BROKER_URL": server.url, CONF_VARIABLE: json.dumps(conf)}
    return Worker("tests.support.beat_app", pool=pool, env=env)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def locks(server: EmbeddedServer) -> Iterator[Locks]:
    locks = Locks.from_url(server.url)
    yield locks
    locks.close()


def leader_pid(locks: Locks) -> int | None:
    holders = locks.holders("primary")
    return holders[0].pid if holders else None


def wait_leader(locks: Locks, worker: Worker) -> None:
    wait_until(lambda: leader_pid(locks) == worker.pid, PATIENCE, what=f"leader {worker.pid}")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_worker_takes_over_from_one_that_is_killed(
    server: EmbeddedServer, locks: Locks, pool: str
) -> None:
    with make_worker(server, pool) as first:
        wait_leader(locks, first)
        with make_worker(server, pool) as second:
            with measure_stalls() as stalled:
                killed_at = time.monotonic()
                first.kill()
                wait_leader(locks, second)
                assert time.monotonic() - killed_at < TTL + 0.5 + stalled()


def test_worker_takes_over_at_once_from_one_that_shuts_down(
    server: EmbeddedServer, locks: Locks
) -> None:
    with make_worker(server, ttl=600) as first:
        wait_leader(locks, first)
        with make_worker(server, ttl=600) as second:
            wait_until(lambda: (i := locks.info("primary")) and i.waiters, PATIENCE, what="a line")
            first.stop(PATIENCE)
            wait_leader(locks, second)


def test_pool_knows_whether_its_worker_leads(server: EmbeddedServer, locks: Locks) -> None:
    """Its children were forked before the election."""
    with make_worker(server) as first:
        wait_leader(locks, first)
        [holder] = locks.holders("primary")
        with make_worker(server) as second:
            client = server.client()
            pids = {first.pid, second.pid}
            reports: dict[int, Any] = {}

            def ask() -> bool:
                with app.connection_for_write(server.url) as connection:
                    app.send_task("term", connection=connection, ignore_result=True)
                for line in client.lrange(TERMS, 0, -1):
                    pid, is_leader, fence = json.loads(line)
                    reports[pid] = (is_leader, fence)
                return set(reports) == pids

            wait_until(ask, PATIENCE, every=0.2, what="an answer of both pools")
            assert reports == {first.pid: (True, holder.fence), second.pid: (False, 0)}
            client.close()
