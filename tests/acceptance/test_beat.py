"""Two real beats and a worker: one beat is active, another takes over, each run is sent once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.beats import PATIENCE, TTL, Fleet, server_with_worker
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with server_with_worker() as server:
        yield server


@pytest.fixture
def fleet(server: EmbeddedServer) -> Iterator[Fleet]:
    fleet = Fleet(server)
    yield fleet
    fleet.kill()


def test_beat_takes_over_from_one_that_is_killed(fleet: Fleet) -> None:
    active, other = fleet.two_beats()
    assert "celery beat" in (listed := fleet.locks_list())
    assert f" {active.pid} " in listed
    with measure_stalls() as stalled:
        fleet.kill_between_runs(active)
        killed_at = time.time()
        first, *_ = fleet.wait_sent_by(other, 3)
        assert first["sent_at"] - killed_at < TTL + 0.5 + stalled()
    fleet.check_each_run_is_sent_once()


def test_beat_that_was_paused_past_its_ttl_sends_nothing_twice(fleet: Fleet) -> None:
    """It continues in the middle of whatever it did, with a lease that another has by now."""
    active, other = fleet.two_beats()
    os.kill(active.pid, signal.SIGSTOP)
    fleet.wait_sent_by(other, 2)
    continued_at = time.time()
    os.kill(active.pid, signal.SIGCONT)
    fleet.wait_sent_by(other, 3, after=continued_at)
    late = [run for run in fleet.runs() if run["pid"] == active.pid]
    # At most the one that it had claimed before the pause.
    assert len([run for run in late if run["sent_at"] > continued_at]) <= 1
    fleet.check_each_run_is_sent_once()


def test_beat_takes_over_at_once_from_one_that_is_stopped(fleet: Fleet) -> None:
    fleet.conf["locks_beat_ttl"] = 120
    active, other = fleet.two_beats()
    fleet.wait_quiet()
    os.kill(active.pid, signal.SIGTERM)
    wait_until(lambda: not active.is_running, PATIENCE, what="the beat to end")
    fleet.wait_sent_by(other, 2)
    fleet.check_each_run_is_sent_once()


def test_beats_survive_a_lock_server_that_loses_its_data(fleet: Fleet) -> None:
    """Nothing is sent while it is away; then the runs continue from the memory of the beats."""
    with EmbeddedServer() as locks:
        fleet.conf["locks_url"] = locks.url
        active, other = fleet.two_beats()
        # The other beat reads the runs every third of the ttl, which is one second.
        fleet.wait_sent_by(active, 4, after=time.time())
        locks.kill()
        wait_until(lambda: "no longer the leader" in active.log(200), PATIENCE, what="the loss")
        before = len(fleet.runs())
        restarted_at = time.time()
        locks.restart()
        wait_until(lambda: len(fleet.runs()) >= before + 4, PATIENCE, what="runs to come again")
        assert active.is_running
        assert other.is_running
        silent = [run for run in fleet.runs() if restarted_at - 1 < run["sent_at"] < restarted_at]
        assert silent == []
        numbers = fleet.numbers("fast")
        # A run that was sent after the last read of the other beat has its number again.
        assert numbers[-1] >= len(numbers) - 2
