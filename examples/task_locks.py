"""A scheduler's task locks: nine plain functions, a context manager and REST, on one server.

The functions have the names of a common hand-written module, and add renewal: ``timeout`` is how
long a lock survives its process, not how long the task may take. The REST calls find a task by its
id: Celery tasks have one, other code passes it in ``holder``.

    python -m examples.task_locks
"""

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from celery_locks import Holder, Locks, TaskLockAcquireError
from celery_locks.functions import (
    acquire_task_lock,
    configure,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock_context,
)
from celery_locks.web import create_app
from examples import _run
from tests.servers.embedded import EmbeddedServer

OTHER = """
import sys, time
from celery_locks.functions import acquire_task_lock, configure
configure(sys.argv[1])
print(acquire_task_lock("task_lock:42", 60), flush=True)
time.sleep(60)
"""


def show() -> None:
    with EmbeddedServer() as server:
        locks = configure(server.url)
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, server.url], stdout=subprocess.PIPE, cwd=_run.ROOT
        )
        try:
            _show(other)
            with _serve(locks) as address:
                _show_rest(locks, address)
        finally:
            other.kill()
            other.communicate()


def _show(other: "subprocess.Popen[bytes]") -> None:
    key = "task_lock:7"
    _run.say(f"acquire_task_lock: {acquire_task_lock(key, 300)}, and again: {again(key)}.")
    _run.say(f"is_task_locked: {is_task_locked(key)}.")
    holder, info = get_lock_holder(key), get_lock_info(key)
    _run.say(f"get_lock_holder: {holder}.")
    _run.say(f"get_lock_ttl: {get_lock_ttl(key) or 0:.0f} s.")
    _run.say(f"extend_task_lock: {extend_task_lock(key, 600)}; {get_lock_ttl(key) or 0:.0f} s.")
    _run.say(f"get_lock_info: {info.name if info else None}, limit {info.limit if info else 0}.")
    assert other.stdout is not None
    _run.say(f"Another process takes task 42: {other.stdout.readline().decode().strip()}.")
    names = sorted(lock.name for lock in list_all_task_locks())
    _run.say(f"list_all_task_locks: {', '.join(names)}.")
    try:
        with task_lock_context("task_lock:42"):
            raise SystemExit("Error: two processes have task 42.")
    except TaskLockAcquireError as error:
        _run.say(f"task_lock_context raises: held by pid {error.holder and error.holder.pid}.")
    with task_lock_context("task_lock:42", raise_on_fail=False) as got:
        _run.say(f"task_lock_context(raise_on_fail=False) yields {got}.")
    _run.say(f"force_release_task_lock: {force_release_task_lock('task_lock:42')}.")
    with task_lock_context("task_lock:42") as got:
        _run.say(f"Then task_lock_context yields {got}.")
    _run.say(f"release_task_lock: {release_task_lock(key)}; left: {list_all_task_locks()}.")


def _show_rest(locks: Locks, address: str) -> None:
    holder = Holder(task_id="42", task="nightly report", worker="scheduler-1")
    lease = locks.acquire("task_lock:42", ttl=60, holder=holder)
    _run.say(f"Task 42 runs again: {lease is not None}; now over REST, with an API key.")
    for row in _request(f"{address}/api/v1/tasks/locks")["locks"]:
        lock = f"{row['name']}, {row['task']}[{row['task_id']}] on {row['worker']}"
        _run.say(f"GET /api/v1/tasks/locks: {lock}.")
    found = _request(f"{address}/api/v1/tasks/42/lock")
    _run.say(f"GET /api/v1/tasks/42/lock: locked {found['locked']}.")
    freed = _request(f"{address}/api/v1/tasks/42/release-lock", by="ann", reason="stuck")["freed"]
    _run.say(f"POST /api/v1/tasks/42/release-lock: freed {freed[0]['name']}.")
    _run.say(f"is_task_locked: {is_task_locked('task_lock:42')}.")
    history = f"{address}/api/v1/locks/history?name=task_lock:42&only_acts=true&limit=1"
    [entry] = _request(history)["acts"]
    _run.say(f"GET /api/v1/locks/history: by {entry['by']}, because {entry['why']}.")


def _request(address: str, **body: str) -> Any:
    """Send a GET request, or with a body a POST request."""
    headers = {"X-API-Key": "ops-key", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as answer:
        return json.load(answer)


@contextmanager
def _serve(locks: Locks) -> Iterator[str]:
    """Serve the web app on a free port in a thread, as `celery-locks web` does in a process."""
    listening = socket.create_server(("127.0.0.1", 0))
    web = create_app(locks, write_keys=["ops-key"])
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def again(key: str) -> bool:
    return acquire_task_lock(key, 300)


if __name__ == "__main__":
    _run.main(show)
