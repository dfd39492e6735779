"""One Celery app for each candidate, and the process that calls its tasks.

Loaded in the candidate's own environment, by its worker and by ``python -m benchmarks.candidates``:
only Celery, redis-py and the candidate itself are there. Each is set up as the start of its own
documentation shows, with defaults for the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import celery
import redis

NAME, URL = os.environ["BENCH_CANDIDATE"], os.environ["BENCH_URL"]
# Longer than any case of recovery takes; leftover runs end then.
LONGEST_HOLD = 20.0
POLL, ANNOUNCED, PUBLISH_AGAIN = 0.001, 0.2, 0.05
COOKBOOK_EXPIRY = 60 * 10

RATES = {
    "celery-locks with a rate": {"rate": "1000000/s", "key": "bench", "burst": 1_000_000},
    "celery-locks with a low rate": {"rate": "100/s", "key": "bench"},
}

app = celery.Celery("bench", broker=URL, backend=URL)
app.conf.update(
    worker_hijack_root_logger=False,
    locks_url=os.environ.get("BENCH_LOCKS_URL") or None,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": URL}},
)
client = redis.Redis.from_url(URL)
# The redis keys of results of tasks that are published and wait for their worker.
_waiting: list[str] = []


def noop(key: str) -> None:
    """Do nothing: the whole cost is that of Celery and of the lock."""


def count_run(key: str) -> None:
    """Count the run; the counter is not on the lock server."""
    client.incr("bench:ran")


def hold(key: str) -> None:
    """Report the start and run until told to stop."""
    client.rpush("bench:started", json.dumps([key, os.getpid(), time.monotonic()]))
    until = time.monotonic() + LONGEST_HOLD
    while time.monotonic() < until and not client.exists(f"bench:stop:{key}"):
        time.sleep(0.02)


@contextmanager
def cookbook_lock(name: str) -> Iterator[bool]:
    """Celery's cookbook, "Ensuring a task is only executed one at a time", with Redis as cache."""
    timeout_at = time.monotonic() + COOKBOOK_EXPIRY - 3
    got = bool(client.set(name, app.oid, nx=True, ex=COOKBOOK_EXPIRY))
    try:
        yield got
    finally:
        if time.monotonic() < timeout_at and got:
            client.delete(name)


def _by_cookbook(body: Callable[[str], None]) -> Callable[[str], None]:
    def locked(key: str) -> None:
        with cookbook_lock(f"{body.__name__}-lock-{key}") as got:
            if got:
                body(key)

    return locked


def _task(body: Callable[[str], None]) -> Any:
    options: dict[str, Any] = {"name": f"bench.{body.__name__}"}
    if NAME == "cookbook recipe":
        body = _by_cookbook(body)
    if NAME.startswith("celery-locks"):
        from celery_locks import LockedTask

        options |= {"base": LockedTask, "lock_key": body.__name__ + ":{key}"}
        if NAME in RATES:
            options["lock_rates"] = [RATES[NAME]]
    if NAME == "celery-once":
        from celery_once import QueueOnce

        options["base"] = QueueOnce
    if NAME == "celery-singleton":
        from celery_singleton import Singleton

        options["base"] = Singleton
    if NAME == "celery-heimdall":
        from celery_heimdall import HeimdallTask

        options |= {"base": HeimdallTask, "heimdall": {"unique": True}}
    return app.task(**options)(body)


TASKS = {body.__name__: _task(body) for body in (noop, hold, count_run)}


def tasks_done(count: int) -> float:
    """Return the seconds from the first of ``count`` publishes until every result is stored."""
    began = time.perf_counter()
    _wait_stored(_publish(count))
    return time.perf_counter() - began


def publish_stopped(count: int, worker: int) -> float:
    """Return the seconds of ``count`` publishes while the worker is stopped and takes none."""
    os.kill(worker, signal.SIGSTOP)
    began = time.perf_counter()
    _waiting[:] = _publish(count)
    return time.perf_counter() - began


def run_waiting(worker: int) -> float:
    """Let the stopped worker go on; return the seconds until every result is stored."""
    began = time.perf_counter()
    os.kill(worker, signal.SIGCONT)
    _wait_stored(_waiting)
    return time.perf_counter() - began


def _publish(count: int) -> list[str]:
    """Publish no-op tasks with new keys; return the redis keys of their results."""
    call, mark = TASKS["noop"].delay, f"k{os.urandom(4).hex()}"
    results = [call(f"{mark}-{number}") for number in range(count)]
    return [f"celery-task-meta-{result.id}" for result in results]


def _wait_stored(keys: list[str]) -> None:
    """Wait for all results, and delete them.

    Celery announces a result on a channel of the same name. Until the last one is announced the
    caller sleeps: its polls would take processor time from the worker.
    """
    until = time.perf_counter() + 30
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(keys[-1])
        while (done := client.exists(*keys)) < len(keys):
            if time.perf_counter() > until:
                raise TimeoutError(f"{done} of {len(keys)} tasks done in 30 s")
            if client.exists(keys[-1]):
                time.sleep(POLL)
            else:
                channel.get_message(timeout=ANNOUNCED)
    client.delete(*keys)


def held(count: int, seconds: float) -> None:
    """Return after ``count`` tasks have held their locks for some seconds."""
    keys = [f"k{os.urandom(4).hex()}" for _ in range(count)]
    for key in keys:
        TASKS["hold"].apply_async((key,), ignore_result=True)
    time.sleep(seconds)
    for key in keys:
        client.set(f"bench:stop:{key}", 1, ex=60)


def all_run(count: int, patience: float) -> float:
    """Return the seconds from the first of ``count`` publishes until all of them have run."""
    began = time.perf_counter()
    client.set("bench:ran", 0)
    for number in range(count):
        TASKS["count_run"].apply_async((f"k{number}",), ignore_result=True)
    while int(client.get("bench:ran") or 0) < count:
        if time.perf_counter() > began + patience:
            raise TimeoutError(f"{client.get('bench:ran')!r} of {count} tasks ran")
        time.sleep(0.1)
    return time.perf_counter() - began


def recovered(cause: str, cap: float) -> float | None:
    """Return the seconds from the end of a run, by ``cause``, to the next run of its key.

    None if no run started within ``cap``, though the caller published again and again.
    """
    key = f"k{os.urandom(4).hex()}"
    limit = {"time_limit": 1} if cause == "hard time limit" else {}
    result = TASKS["hold"].apply_async((key,), **limit)
    pid, started = _started(key, 10.0)
    ended = _end(cause, result.id, pid, started)
    try:
        return _next_start(key, ended, ended + cap)
    finally:
        client.set(f"bench:stop:{key}", 1, ex=60)
        app.control.purge()


def _end(cause: str, task_id: str, pid: int, started: float) -> float:
    if cause == "kill -9":
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()
    if cause == "revoke(terminate)":
        time.sleep(0.1)
        app.control.revoke(task_id, terminate=True)
        return time.monotonic()
    time.sleep(max(0.0, started + 1 - time.monotonic()))
    return started + 1


def _next_start(key: str, ended: float, until: float) -> float | None:
    while time.monotonic() < until:
        try:
            TASKS["hold"].apply_async((key,))
        except Exception as error:
            if type(error).__name__ != "AlreadyQueued":
                raise
        try:
            return _started(key, PUBLISH_AGAIN)[1] - ended
        except TimeoutError:
            pass
    return None


def _started(key: str, patience: float) -> tuple[int, float]:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        entry = client.blpop(["bench:started"], timeout=max(0.01, until - time.monotonic()))
        if entry:
            started_key, pid, at = json.loads(entry[1])
            if started_key == key:
                return pid, at
    raise TimeoutError(f"{NAME}: no run of {key} started in {patience:g} s")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "done": tasks_done,
    "publish": publish_stopped,
    "run": run_waiting,
    "held": held,
    "all_run": all_run,
    "recovered": recovered,
}


def main() -> None:
    """Read calls, ``[function, arguments…]``, and print each result on a line."""
    for line in sys.stdin:
        name, *args = json.loads(line)
        print(json.dumps(FUNCTIONS[name](*args)), flush=True)


if __name__ == "__main__":
    main()
