"""What a worker says of its locks when it starts, and what its tasks do if a server refuses it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_locks.errors import ServerRefused
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Worker, rig_on
from tests.support.waiting import wait_until

PASSWORD = "S3cretPw"


def lines_of(worker: Worker, word: str) -> list[str]:
    """The lines about locks of one level, without those of the test's own tasks."""
    return [line for line in worker.log.splitlines() if f"{word}/" in line and "lock" in line]


def wait_line(worker: Worker, word: str, text: str) -> str:
    def found() -> list[str]:
        return [line for line in lines_of(worker, word) if text in line]

    return wait_until(found, PATIENCE, what=f"the {word} {text!r} in:\n{worker.log}")[0]


@pytest.fixture(scope="module")
def server(no_server_left: None) -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def broker(server: EmbeddedServer) -> EmbeddedServer:
    """Without the messages and events of the test before."""
    server.flush()
    return server


@pytest.fixture
def guarded(no_server_left: None) -> Iterator[EmbeddedServer]:
    """A lock server that wants a password."""
    with EmbeddedServer({"requirepass": PASSWORD}) as server:
        yield server


def url_of(server: EmbeddedServer, password: str = "") -> str:
    login = f":{password}@" if password else ""
    return f"redis://{login}127.0.0.1:{server.port}/2"


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_start_names_server_and_tasks(
    broker: EmbeddedServer, guarded: EmbeddedServer, pool: str
) -> None:
    """Whoever reads the log sees that locks are on, where, and for how many tasks."""
    with (
        rig_on(broker, locks_url=url_of(guarded, PASSWORD)) as rig,
        rig.worker(pool=pool) as worker,
    ):
        line = wait_line(worker, "INFO", "locks: redis://")
        assert f"locks: redis://127.0.0.1:{guarded.port}/2, ttl " in line
        assert "tasks are locked (" in line
        assert " by key, " in line
        assert " by task id)" in line
        assert PASSWORD not in worker.log
        assert rig.task("work").delay("a").get(timeout=PATIENCE) == "a"
        assert not lines_of(worker, "ERROR")
        assert not lines_of(worker, "WARNING")


@pytest.mark.parametrize(
    ("password", "sentence"),
    [("", "wants a password; write it into the URL"), ("wrong", "refuses our user or password")],
)
def test_a_refusal_is_an_error_at_the_start(
    broker: EmbeddedServer, guarded: EmbeddedServer, password: str, sentence: str
) -> None:
    """Before any task comes, and again for the tasks that meet it, but not for each of them."""
    with rig_on(broker, locks_url=url_of(guarded, password)) as rig:
        with rig.worker(concurrency=1) as worker:
            assert "no task can take its lock" in wait_line(worker, "ERROR", sentence)
            results = [rig.task("work").delay(f"refused-{n}") for n in range(4)]
            for n in range(4):
                rig.wait_event("requeued", f"refused-{n}", times=2)
            assert len([line for line in lines_of(worker, "ERROR") if sentence in line]) == 2
            assert "(lock " not in "".join(lines_of(worker, "ERROR")), "no inner names"
            assert "multibulk" not in worker.log
            # A person corrects it: nothing is lost.
            guarded.client(password=PASSWORD).config_set("requirepass", password)
            for n, result in enumerate(results):
                assert result.get(timeout=PATIENCE) == f"refused-{n}"


def test_a_task_that_is_refused_for_an_hour_fails(
    broker: EmbeddedServer, guarded: EmbeddedServer
) -> None:
    """Nobody would learn of a task that waits for ever; who called it is told what to correct."""
    since = {"refused": time.time() - 3601, "since": time.time() - 3601, "times": 5}
    with rig_on(broker, locks_url=url_of(guarded, "wrong")) as rig, rig.worker():
        late = rig.task("work").apply_async(["late"], headers={"celery_locks": since})
        with pytest.raises(ServerRefused, match="refuses our user or password"):
            late.get(timeout=PATIENCE)
        # That others held the lock for long is another matter.
        patient = {"since": time.time() - 86400, "times": 5}
        rig.task("work").apply_async(["patient"], headers={"celery_locks": patient})
        rig.wait_event("requeued", "patient")


@pytest.mark.parametrize("away", ["killed", "paused"])
def test_a_server_that_is_away_does_not_delay_the_start(
    broker: EmbeddedServer, guarded: EmbeddedServer, away: str
) -> None:
    """It may come a little later than its workers; they start, say so once, and wait for it."""
    url = url_of(guarded, PASSWORD)
    with rig_on(broker, locks_url=url) as rig:
        guarded.kill() if away == "killed" else guarded.pause()
        try:
            with rig.worker() as worker:
                wait_line(worker, "WARNING", "locks: tasks wait for their lock server")
                assert not lines_of(worker, "ERROR")
                assert rig.task("echo").delay("free").get(timeout=PATIENCE) == "free"
                guarded.restart() if away == "killed" else guarded.resume()
                assert rig.task("work").delay("b").get(timeout=PATIENCE) == "b"
        finally:
            guarded.resume()


def test_no_lock_server_is_an_error_at_the_start() -> None:
    """The sentence says what to set; the worker runs on, for its other tasks."""
    worker = Worker({"broker_url": "memory://", "journal_url": "redis://"}, ("-P", "solo"))
    try:
        assert "set app.conf.locks_url" in wait_line(worker, "ERROR", "no task can take its lock")
        worker.wait_ready()
    finally:
        worker.stop()
