"""The app of the recipes' worker tests: tasks that are done once, and tasks that can be stopped."""

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_locks import LockedTask, StopRequested, single_instance
from celery_locks.recipes import idempotent
from tests.support.keys import key_alone

URL = os.environ.get("RECIPE_URL", "redis://localhost:1")
app = Celery("recipes", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
app.conf.locks_ttl = 1.5
app.conf.locks_url = os.environ.get("RECIPE_LOCKS_URL", URL)
app.conf.worker_hijack_root_logger = False
app.conf.worker_proc_alive_timeout = (
    60  # Celery kills a child that a busy machine starts too slowly
)


def note(word: str) -> None:
    with redis.Redis.from_url(URL) as client:
        client.rpush("notes", word)


@app.task(base=LockedTask, bind=True, max_retries=3)
@single_instance(key="pay:{order}", once=60, on_conflict="wait")
def pay(self: Any, order: str, fail: int = 0, pause: float = 0.0) -> dict[str, Any]:
    note(f"pay {order}")
    time.sleep(pause)
    if fail and self.request.retries < fail:
        raise self.retry(countdown=0)
    if fail < 0:
        raise OSError("no luck")
    return {"paid": order}


@app.task
@idempotent(key="book:{order}")
def book(order: str) -> Any:
    note(f"book {order}")
    return "x" * 70_000


@app.task
@single_instance(key="risk:{order}", once=60, reuse="never", ttl=3)
def risk(order: str, die: int = 0, pause: float = 0.0) -> str:
    note(f"risk {order}")
    if die:
        os.kill(os.getpid(), die)
    for _ in range(round(pause * 100)):
        time.sleep(0.01)
    raise OSError("no luck")


@app.task(base=LockedTask, bind=True, max_retries=1)
@single_instance(key="flaky:{order}", once=60, once_failed=5, on_conflict="wait")
def flaky(self: Any, order: str, fail: bool = True, pause: float = 0.0) -> str:
    note(f"flaky {order}")
    for _ in range(round(pause * 100)):
        time.sleep(0.01)
    if fail and self.request.retries < 1:
        raise self.retry(exc=OSError("no luck"), countdown=0)
    if fail:
        raise OSError("no luck")
    return "well"


@app.task(base=LockedTask, bind=True, lock_key=key_alone)
def polite(self: Any, key: str) -> str:
    note(f"polite {key}")
    for _ in range(2000):
        time.sleep(0.01)
        try:
            self.lock.check()
        except StopRequested:
            return "stopped"
    return "never asked"


@app.task(base=LockedTask, lock_key=key_alone, lock_on_stop="raise")
def rude(key: str) -> str:
    note(f"rude {key}")
    try:
        for _ in range(2000):
            time.sleep(0.01)
    finally:
        note(f"rude {key} cleaned up")
    return "never stopped"


@app.task
def echo(value: Any) -> Any:
    return value
