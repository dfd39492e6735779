"""Who renews: the lock of a task that works longer than its ttl is never free, whatever goes on.

One test for each row of "Who renews". The ttl is 3 s and each task works for longer than that. To
save time all of them run at once, each on a worker of its own kind; the lookout asks the store
about all locks every few milliseconds, and the tests look at what it saw. A scene that fails fails
its own test only.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from celery_locks import admin
from tests.servers.embedded import EmbeddedServer
from tests.support.journal import Run
from tests.support.lookout import Lookout
from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until
from tests.support.worker import Worker

TTL = 3.0
LONG = TTL + 1.8


@dataclass
class Scene:
    """A task at work on a worker, and what is done to them meanwhile."""

    kind: str
    worker: Worker
    stage: Stage
    queue: str
    seconds: float = LONG
    meanwhile: Callable[["Scene"], None] = lambda scene: None
    key: str = ""

    def play(self, lookout: Lookout) -> None:
        self.worker.wait_ready()
        self.stage.send("work", self.key, self.kind, self.seconds, queue=self.queue)
        self.stage.wait_wrote(self.key, "start", 30)
        self.meanwhile(self)
        self.stage.wait_wrote(self.key, "over", 60)
        lookout.wait_free(self.key, self.run)

    @property
    def run(self) -> Run:
        (one,) = self.stage.journal.runs(self.key)
        return one


class Trial:
    """Scenes that run together."""

    def __init__(self, lock_server: EmbeddedServer, exits: contextlib.ExitStack) -> None:
        self.exits = exits
        self.lock_server = lock_server
        self.stage = exits.enter_context(Stage(locks_on=lock_server))
        self.scenes: dict[str, Scene] = {}
        self.plays: dict[str, Future[None]] = {}

    def worker(
        self, queue: str, pool: str, count: int, *words: str, stage: Stage | None = None, **env: str
    ) -> Worker:
        made = (stage or self.stage).worker(pool, count, "-Q", queue, *words, **env)
        self.exits.callback(made.kill)
        made.start()
        return made

    def add(
        self,
        name: str,
        kind: str,
        worker: Worker,
        queue: str,
        *,
        stage: Stage | None = None,
        **more: Any,
    ) -> None:
        key = new_key(name)
        self.scenes[name] = Scene(kind, worker, stage or self.stage, queue, key=key, **more)

    def perform(self) -> None:
        keys = [scene.key for scene in self.scenes.values()]
        self.lookout = self.exits.enter_context(Lookout(self.stage.locks_url, keys))
        with ThreadPoolExecutor(len(self.scenes)) as threads:
            for name, scene in self.scenes.items():
                self.plays[name] = threads.submit(scene.play, self.lookout)

    def check(self, name: str, *, done: bool = True) -> Scene:
        self.plays[name].result()
        scene = self.scenes[name]
        run = scene.run
        assert ("done" in run.lines) == done, run
        looks = self.lookout.held_throughout(scene.key, run)
        assert looks > 20, "looked at too rarely to say anything"
        assert run.last_sign - run.began > TTL, "it worked too short to prove anything"
        ended = [act.act for act in admin.history(scene.stage.locks, scene.key)]
        assert ended == ["held"], "its end is a release, not an expiry"
        return scene


@pytest.fixture(scope="module")
def lock_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as one:
        yield one


@pytest.fixture(scope="module")
def trial(lock_server: EmbeddedServer) -> Iterator[Trial]:
    """On prefork, with the children as they come and go."""
    with contextlib.ExitStack() as exits:
        made = Trial(lock_server, exits)
        many = made.worker("many", "prefork", 4, "-O", "fair")
        made.add("gil", "hold_gil", many, "many")
        made.add("regex", "regex", many, "many")
        made.add("stopped", "stop_itself", many, "many", meanwhile=_wake_later)
        made.add("fair", "sleep", many, "many")
        recycling = made.worker("recycling", "prefork", 2, "--max-tasks-per-child", "1")
        made.add("recycling", "until_told", recycling, "recycling", meanwhile=_send_short_ones)
        scaling = made.worker(
            "scaling", "prefork", 1, "--autoscale", "4,1", AUTOSCALE_KEEPALIVE="0.5"
        )
        made.add("scaling", "until_told", scaling, "scaling", meanwhile=_scale)
        spawned = made.worker("spawned", "prefork", 1, OUTCOME_START_METHOD="spawn")
        made.add("spawned", "hold_gil", spawned, "spawned")
        made.perform()
        yield made


@pytest.fixture(scope="module")
def ending(lock_server: EmbeddedServer) -> Iterator[Trial]:
    """Workers that are told to end, and workers whose broker is gone."""
    with contextlib.ExitStack() as exits:
        made = Trial(lock_server, exits)
        for name, number in (("soft", signal.SIGQUIT), ("warm", signal.SIGTERM)):
            worker = made.worker(name, "prefork", 1, OUTCOME_SOFT_SHUTDOWN="7")
            made.add(name, "sleep", worker, name, meanwhile=_signal(number))
        cold = made.worker("cold", "prefork", 1)
        made.add("cold", "sleep", cold, "cold", seconds=60, meanwhile=_signal_later)
        for name, strike in (("killed", _kill_broker), ("frozen", _freeze_broker)):
            stage = exits.enter_context(Stage(locks_on=lock_server))
            worker = made.worker(name, "prefork", 1, stage=stage)
            made.add(name, "sleep", worker, name, stage=stage, meanwhile=strike)
        made.perform()
        yield made


@pytest.fixture(scope="module")
def pools(lock_server: EmbeddedServer) -> Iterator[Trial]:
    """Task and renewer are in one process."""
    with contextlib.ExitStack() as exits:
        made = Trial(lock_server, exits)
        for pool, kind in (
            ("solo", "sleep"),
            ("threads", "compute"),
            ("gevent", "compute"),
            ("eventlet", "compute"),
        ):
            made.add(pool, kind, made.worker(pool, pool, 1), pool)
        made.perform()
        yield made


def _wait_past_ttl(scene: Scene) -> None:
    began = scene.run.began
    wait_until(lambda: time.time() > began + LONG, 20, what="the ttl to be over")


def _wake_later(scene: Scene) -> None:
    _wait_past_ttl(scene)
    os.kill(scene.run.pid, signal.SIGCONT)


def _send_short_ones(scene: Scene) -> None:
    before = set(scene.worker.children)
    for _ in range(3):
        short = scene.stage.send("noop", queue=scene.queue)
        wait_until(short.successful, 30, what=f"task {short.id} to be done")
    wait_until(lambda: before - set(scene.worker.children), 30, what="a child to be replaced")
    _wait_past_ttl(scene)
    scene.stage.journal.gate(scene.key)


def _scale(scene: Scene) -> None:
    """Watch the pool only: the short tasks' results are Celery's business, not the lock's."""
    sizes = [1]

    def size() -> int:
        sizes.append(len(scene.worker.children))
        return sizes[-1]

    for _ in range(3):
        scene.stage.send("work", new_key("short"), "sleep", 1, queue=scene.queue)
    wait_until(lambda: size() > 1, 30, what="the pool to grow")
    wait_until(lambda: size() < max(sizes), 60, what=f"the pool of {max(sizes)} to shrink")
    _wait_past_ttl(scene)
    scene.stage.journal.gate(scene.key)


def _signal(number: int) -> Callable[[Scene], None]:
    return lambda scene: scene.worker.signal(number)


def _signal_later(scene: Scene) -> None:
    _wait_past_ttl(scene)
    scene.worker.signal(signal.SIGQUIT)


def _kill_broker(scene: Scene) -> None:
    scene.stage.server.kill()


def _freeze_broker(scene: Scene) -> None:
    scene.stage.server.pause()


@pytest.mark.parametrize("name", ["gil", "regex", "stopped", "fair", "spawned"])
def test_prefork_lock_is_held_while_the_child(trial: Trial, name: str) -> None:
    """The main process renews, so it does not matter what the child is at."""
    trial.check(name)


def test_prefork_lock_is_held_while_other_children_are_recycled(trial: Trial) -> None:
    """Children of one task each: they are forked while the background thread renews."""
    trial.check("recycling")


def test_prefork_lock_is_held_while_the_pool_grows_and_shrinks(trial: Trial) -> None:
    """Its own child is never the one that is taken away."""
    trial.check("scaling")


@pytest.mark.parametrize("name", ["soft", "warm"])
def test_lock_is_held_while_the_worker_shuts_down(ending: Trial, name: str) -> None:
    """The task is let finish, so the renewing must go on for as long; its end is no loss.

    In a soft shutdown the main thread sleeps on, so it learns late that the child has released.
    """
    worker = ending.check(name).worker
    worker.wait_end()
    assert "is lost" not in worker.log()


def test_lock_is_free_after_a_cold_shutdown(ending: Trial) -> None:
    """The task is terminated; until it is, the lock is held."""
    ending.check("cold", done=False).worker.wait_end()


@pytest.mark.parametrize("name", ["killed", "frozen"])
def test_lock_is_held_while_the_broker_is(ending: Trial, name: str) -> None:
    """The main process waits for the broker then; the background thread does not."""
    ending.check(name)


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent", "eventlet"])
def test_lock_is_held_in_one_process_on(pools: Trial, pool: str) -> None:
    """A task that never lets the hub run: the background thread is a native one, not a greenlet."""
    pools.check(pool)
