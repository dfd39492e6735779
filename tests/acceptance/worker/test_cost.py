"""What a lock costs a worker: one thread, and two commands for each task."""

import threading
from collections.abc import Iterator

import pytest

from celery_locks.store.scripts import POLL_DUE
from tests.servers.embedded import EmbeddedServer
from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until
from tests.support.worker import Worker, threads_of


@pytest.fixture(scope="module")
def lock_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as one:
        yield one


@pytest.fixture(scope="module")
def stage(lock_server: EmbeddedServer) -> Iterator[Stage]:
    with Stage(locks_on=lock_server) as one:
        yield one


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Iterator[Worker]:
    # One child: a second might open its connection while commands are counted.
    with stage.worker("prefork", 1) as one:
        yield one


class Monitor:
    """The commands that clients send to a server, without those that its scripts run.

    Also without the polls for parked tasks, which a worker sends every two seconds.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._client = server.client()
        self._seen: list[str] = []
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Monitor":
        self._thread.start()
        assert self._listening.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def commands(self) -> list[str]:
        """Those until now."""
        self._server.ask("ECHO", "that was all")
        self._thread.join(10)
        assert not self._thread.is_alive()
        return [command for command in self._seen if not _is_poll(command)]

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._listening.set()
            for command in monitor.listen():
                if "that was all" in command["command"]:
                    return
                if command["client_type"] != "lua":
                    self._seen.append(command["command"])


def _is_poll(command: str) -> bool:
    return command.startswith((f"EVALSHA {POLL_DUE.sha}", "EVAL -- poll_due"))


def test_locked_task_sends_two_commands(
    stage: Stage, worker: Worker, lock_server: EmbeddedServer
) -> None:
    """Acquire and release; nothing from the main process while tasks are short."""
    for result in [stage.send("noop") for _ in range(10)]:
        result.get(timeout=20)  # connections are open now, and scripts loaded
    with Monitor(lock_server) as monitor:
        for result in [stage.send("noop") for _ in range(50)]:
            result.get(timeout=20)
        commands = monitor.commands()
    assert len(commands) == 100, sorted({command[:30] for command in commands})


def test_locks_need_three_threads_in_the_main_process_and_none_in_a_child(
    stage: Stage, worker: Worker
) -> None:
    """A prefork worker without locks has one thread in each process.

    With locks its main process has one more for supervision, one for the lock server, and one that
    wakes parked tasks.
    """
    key = new_key("threads")
    long = stage.send("work", key, "sleep", 2)
    stage.wait_wrote(key, "start")
    wait_until(lambda: threads_of(worker.pid) == 4, what="the background threads")
    assert [threads_of(child) for child in worker.children] == [1]
    long.get(timeout=20)
    assert [threads_of(child) for child in worker.children] == [1]
    assert threads_of(worker.pid) == 4


@pytest.mark.parametrize("pool", ["solo", "gevent", "eventlet"])
def test_locks_need_one_thread_on(pool: str) -> None:
    """If task and renewer share a process, there is still one thread."""
    # gevent's resolver has threads of its own otherwise.
    with Stage() as stage, stage.worker(pool, 2, GEVENT_RESOLVER="block") as worker:
        stage.send("plain").get(timeout=20)
        before = threads_of(worker.pid)
        for result in [stage.send("noop") for _ in range(5)]:
            result.get(timeout=20)
        assert threads_of(worker.pid) <= before + 1
