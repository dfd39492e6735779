"""A scheduler's task locks: nine plain functions and a context manager, over one server.

What the hand-built one had, under the same names; what it never built, the renewal, comes with it:
``timeout`` is how long a lock survives its process, not how long the task may take. The REST calls
come with the web surface (GET /api/v1/tasks/locks and its like).

    python -m examples.task_locks
"""

import subprocess
import sys

from celery_locks import TaskLockAcquireError
from celery_locks.task_lock import (
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
from celery_locks.testing.servers import EmbeddedServer
from examples import _run

OTHER = """
import sys, time
from celery_locks.task_lock import acquire_task_lock, configure
configure(sys.argv[1])
print(acquire_task_lock("task_lock:42", 60), flush=True)
time.sleep(60)
"""


def show() -> None:
    with EmbeddedServer() as server:
        configure(server.url)
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, server.url], stdout=subprocess.PIPE, cwd=_run.ROOT
        )
        try:
            _show(other)
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
            raise SystemExit("Two have task 42.")
    except TaskLockAcquireError as error:
        _run.say(f"task_lock_context raises: held by pid {error.holder and error.holder.pid}.")
    with task_lock_context("task_lock:42", raise_on_fail=False) as got:
        _run.say(f"task_lock_context(raise_on_fail=False) yields {got}.")
    _run.say(f"force_release_task_lock: {force_release_task_lock('task_lock:42')}.")
    with task_lock_context("task_lock:42") as got:
        _run.say(f"Then task_lock_context yields {got}.")
    _run.say(f"release_task_lock: {release_task_lock(key)}; left: {list_all_task_locks()}.")


def again(key: str) -> bool:
    return acquire_task_lock(key, 300)


if __name__ == "__main__":
    _run.main(show)
