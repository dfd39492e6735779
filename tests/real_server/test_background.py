"""The background threads: a server that does not answer costs no lease on another one."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import State
from celery_locks.clock import now
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.locks import CALL_LIMIT
from celery_locks.store.effects import Call
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import PlainCommand
from tests.servers.embedded import EmbeddedServer
from tests.support.news import News
from tests.support.waiting import wait_until

Open = Callable[..., Any]


@pytest.fixture
def frozen() -> Iterator[EmbeddedServer]:
    """A server that accepts connections and answers nothing."""
    with EmbeddedServer() as server:
        server.pause()
        yield server
        server.resume()


class CallsToFrozen:
    """A job of four calls, each as long as a call may take, that is due again at once."""

    def __init__(self, url: str) -> None:
        self._store = RedisStore.from_url(url, "frozen")
        self._ends = threading.Event()
        self.rounds = 0

    @property
    def due(self) -> float:
        return float("inf") if self._ends.is_set() else now()

    def run(self) -> None:
        for _ in range(4):
            if not self._ends.is_set():
                call = Call(PlainCommand("PING"), "", (), (), bool, CALL_LIMIT)
                with pytest.raises(Exception):
                    self._store.perform(call)
        self.rounds += 1

    def end(self) -> None:
        self._ends.set()
        self._store.close()


@pytest.fixture
def calls(frozen: EmbeddedServer) -> Iterator[CallsToFrozen]:
    job = CallsToFrozen(frozen.url)
    yield job
    job.end()


def test_jobs_on_a_frozen_server_cost_no_lease_elsewhere(
    locks: Open, server: EmbeddedServer, calls: CallsToFrozen, news: News
) -> None:
    """Four calls to a frozen broker used up the ttl of a lease on a healthy server."""
    lease = locks(server.url).acquire("healthy", ttl=3)
    renewer.add_job(calls)
    wait_until(lambda: calls.rounds or lease.state is State.LOST, 60, what="a round of four calls")
    assert calls.rounds
    assert lease.state is State.HELD
    assert not {"lost", "suspended"} & set(news.of(lease))


def test_jobs_on_a_frozen_server_delay_no_other_job(
    calls: CallsToFrozen, server: EmbeddedServer
) -> None:
    """A frozen broker must not keep the worker from seeing that a child died."""
    other = CallsToFrozen(server.url)
    other.run = lambda: other.end()  # type: ignore[method-assign]
    renewer.add_job(calls, server="frozen")
    renewer.add_job(other)
    wait_until(lambda: other.due == float("inf"), CALL_LIMIT, what="the other job")


def test_releases_for_a_frozen_server_cost_no_lease_elsewhere(
    locks: Open, server: EmbeddedServer, frozen: EmbeddedServer, news: News
) -> None:
    """Releases that cannot be sent are repeated for as long as the ttl, beside the renewals."""
    away = locks(frozen.url).locks
    lease = locks(server.url).acquire("healthy", ttl=3)
    for number in range(20):
        renewer.release_later(
            PendingRelease(
                f"gone{number}", f"t{number}", away.store_for_thread(), away.commands, now() + 60
            )
        )
    wait_until(lambda: lease.renewals >= 8, 60, what="eight renewals")
    assert not {"lost", "suspended"} & set(news.of(lease))
