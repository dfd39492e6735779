"""What the faults of a soak run do to its workers."""

from __future__ import annotations

import random
from typing import Any, cast

from tests.histories.requests import History, Request
from tests.soak.faults import Faults
from tests.soak.run import checkable


class FakeWorker:
    def __init__(self, *, is_running: bool = True) -> None:
        self.is_running = is_running
        self.was_killed = False

    @property
    def children(self) -> list[int]:
        raise AssertionError("a worker that has ended has no process")

    def kill(self) -> None:
        self.was_killed = True


def faults_of(*workers: FakeWorker) -> tuple[Faults, list[FakeWorker]]:
    running, servers = list(workers), cast(Any, None)
    start = cast(Any, FakeWorker)
    return Faults(random.Random(1), cast(Any, running), start, servers, servers), running


def test_worker_that_ended_by_itself_is_started_again():
    """Celery ends a worker whose pool process dies before it is ready: then nobody would work."""
    alive, ended = FakeWorker(), FakeWorker(is_running=False)
    faults, workers = faults_of(alive, ended)
    faults.restart_ended_workers()
    faults.restart_ended_workers()
    assert workers[0] is alive
    assert workers[1].is_running
    assert ended.was_killed
    assert faults.counts == {"worker ended by itself": 1}


def test_no_child_is_killed_of_a_worker_that_has_ended():
    """Its number may be that of another process by now."""
    faults, _ = faults_of(FakeWorker(is_running=False))
    faults.kill_child()
    assert not faults.counts


def test_locks_with_reservations_are_not_checked():
    """The publisher of a soak run is not recorded, so its reservations have no request."""
    requests = [Request("any", "acquire", "token", 0.0)]
    history = History({"account:0": requests, "account:1": requests})
    assert checkable(history).locks == {"account:0": requests}
    assert history.unchecked == {"account:1": "reservations"}
