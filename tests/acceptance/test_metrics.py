"""The metrics and Celery's events as whoever watches gets them: real workers, a real scrape."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_locks import LeaseLost, Locks, admin, metrics
from celery_locks.admin.metric_sums import MetricField, read_counts
from celery_locks.events import emit
from tests.servers.embedded import EmbeddedServer
from tests.servers.fork_server import run_program
from tests.support.celery_worker import PATIENCE, ROOT, Rig, Worker, fresh_rig
from tests.support.monitor import captured
from tests.support.waiting import wait_until

PATH = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
Samples = dict[tuple[str, ...], float]


def parsed(text: str) -> Samples:
    """By name and the values of its labels, with the prefix left out."""
    return {
        (sample.name.removeprefix("celery_locks_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return parsed(answer.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def rig(port: int) -> Iterator[Rig]:
    """Two children, events on, and the main process answers to Prometheus."""
    with fresh_rig() as rig, rig.worker("-E", metrics_port=port):
        yield rig


class Watched:
    """What changed since the test began."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = scrape(port)

    def __getitem__(self, sample: tuple[str, ...]) -> float:
        return scrape(self._port).get(sample, 0.0) - self._before.get(sample, 0.0)

    def scraped(self) -> Samples:
        return scrape(self._port)

    def wait(self, change: float, *sample: str) -> None:
        """Or more: what a test before this one did may be sent only now."""

        def is_there() -> bool:
            return self[sample] >= change if change else self[sample] == 0

        wait_until(is_there, PATIENCE, every=0.1, what=f"{sample} to be {change}")


@pytest.fixture
def watched(rig: Rig, port: int) -> Watched:
    return Watched(port)


def test_scrape_has_what_the_children_did(rig: Rig, watched: Watched) -> None:
    """Children acquire and are never scraped; what they count must reach who is."""
    # A task of the app that never ran has its counters all the same.
    assert watched.scraped()["lost_total", "gone", "stubborn"] == 0
    work = rig.task("work")
    first = work.delay("metric", "metric-gate")
    rig.wait_started(first)
    watched.wait(1, "held", "work")
    assert work.delay("metric").get(timeout=PATIENCE)["skipped"]
    watched.wait(1, "skipped_total", "work")
    watched.wait(1, "conflicts_total", "skip", "work")
    assert watched["hold_seconds_count", "work"] == 0
    rig.open("metric-gate")
    first.get(timeout=PATIENCE)
    watched.wait(1, "hold_seconds_count", "work")
    assert watched["acquired_total", "work"] == 1
    assert watched["wait_seconds_bucket", "+Inf", "work"] == 1
    watched.wait(0, "held", "work")


def test_killed_child_is_counted_by_its_parent(rig: Rig, watched: Watched) -> None:
    """What it had sent stays; that it died holding a lock is said by who freed it."""
    run = rig.task("late").delay("killed", "killed-gate")
    pid = rig.wait_started(run)["pid"]
    watched.wait(1, "acquired_total", "late")
    os.kill(pid, signal.SIGKILL)
    watched.wait(1, "freed_total", "late")
    rig.wait_free("killed")
    assert watched["hold_seconds_count", "late"] == 0


def test_lost_lease_is_counted_with_its_reason(rig: Rig, watched: Watched) -> None:
    run = rig.task("work").delay("taken", "taken-gate")
    rig.wait_started(run)
    admin.force_release(rig.locks, "taken", reason="a test", by="tests")
    with pytest.raises(LeaseLost):
        run.get(timeout=PATIENCE)
    watched.wait(1, "lost_total", "revoked", "work")


def test_monitor_sees_the_locks(rig: Rig) -> None:
    """From the process that runs the task: the main process knows nothing of its lock."""
    work = rig.task("work")
    with captured(rig.app) as seen:

        def has_begun() -> bool:
            work.delay("probe").get(timeout=PATIENCE)
            return bool(seen)

        wait_until(has_begun, PATIENCE, every=0.2, what="the monitor to be connected")
        run = work.delay("watched", "watched-gate")
        start = rig.wait_started(run)
        busy = work.delay("watched")
        busy.get(timeout=PATIENCE)
        rig.open("watched-gate")
        run.get(timeout=PATIENCE)

        def of(result: Any) -> list[dict[str, Any]]:
            return [event for event in seen if event["uuid"] == result.id]

        wait_until(lambda: len(of(run)) == 2 and len(of(busy)) == 1, PATIENCE, what="the events")
        acquired, released = of(run)
        [conflict] = of(busy)
    assert acquired["type"] == "lock-acquired"
    assert (acquired["lock"], acquired["fence"]) == ("watched", start["fence"])
    assert acquired["pid"] == start["pid"]
    assert acquired["name"] == "work"
    assert released["type"] == "lock-released"
    assert released["held_for"] > 0
    assert (conflict["type"], conflict["policy"]) == ("lock-conflict", "skip")


# With the others the process ends like any that runs Python, as gevent's does.
POOLS = {"prefork": ("--max-tasks-per-child", "2"), "gevent": ()}


@pytest.mark.parametrize("pool", POOLS)
def test_nothing_is_lost_at_the_end(rig: Rig, pool: str) -> None:
    """Children are recycled and workers restarted all day long."""
    prefix = f"end-{pool}"
    with rig.worker(
        *POOLS[pool], pool=pool, metrics_port=free_port(), locks_prefix=prefix,
        task_default_queue=prefix,
    ) as worker:  # fmt: skip
        work = rig.task("work")
        runs = [work.apply_async((f"{pool}-{n}",), queue=prefix) for n in range(7)]
        for run in runs:
            run.get(timeout=PATIENCE)
        end(worker)
    found = parsed(on_terminal(rig, prefix))
    assert found["acquired_total", "work"] == 7
    assert found["hold_seconds_count", "work"] == 7


def end(worker: Worker) -> None:
    """As ``kill`` does it, for the main process only."""
    worker.signal(signal.SIGTERM)
    wait_until(lambda: not worker._child.is_running, PATIENCE, what="the worker to end")


def on_terminal(rig: Rig, prefix: str) -> str:
    command = ["-c", "from celery_locks.cli import main; main()"]
    command += ["--url", rig.server.url, "--prefix", prefix, "metrics", "--once"]
    done = run_program(command, {**os.environ, "PYTHONPATH": PATH})
    done.check_returncode()
    return done.stdout


def test_command_serves_the_whole_fleet(rig: Rig, watched: Watched) -> None:
    """One exporter beside the workers, which asks the server and nobody else."""
    rig.task("work").delay("fleet").get(timeout=PATIENCE)
    watched.wait(1, "acquired_total", "work")
    command = [sys.executable, "-c", "from celery_locks.cli import main; main()"]
    command += ["--url", rig.server.url, "metrics", "--port", "0"]
    serving = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": PATH}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout
        at = re.search(r":(\d+)/metrics", serving.stdout.readline())
        assert at
        found = scrape(int(at[1]))
        assert found["up",] == 1
        assert found["acquired_total", "work"] >= 1
        serving.send_signal(signal.SIGINT)
        assert serving.wait(PATIENCE) == 0
    finally:
        serving.kill()
        serving.wait()
        if serving.stdout:
            serving.stdout.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_does_not_send_what_its_parent_counted(valkey: EmbeddedServer) -> None:
    locks = Locks.from_url(valkey.url, prefix="fork-metrics")
    end_counting = metrics.install(locks)
    emit("skipped", "a", task="parent")
    pid = os.fork()
    if not pid:
        try:
            emit("skipped", "a", task="child")
            end_counting()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert read_counts(locks).get(MetricField("skipped", "child")) == 1
    end_counting()
    counts = read_counts(locks)
    locks.close()
    assert counts == {MetricField("skipped", "parent"): 1, MetricField("skipped", "child"): 1}
