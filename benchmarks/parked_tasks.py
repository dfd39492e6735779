"""The app of the benchmark of parked tasks, for its worker; the URL is in a variable."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_locks import LockedTask

URL = os.environ.get("BENCH_URL", "redis://localhost:6379/0")
app = Celery("parked", broker=URL, backend=URL, set_as_current=False)
app.conf.update(
    locks_url=URL,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
client = redis.Redis.from_url(URL)


@app.task(name="in_turn", base=LockedTask, lock_key="in_turn", lock_on_conflict="park")
def in_turn(mark: str, number: int) -> None:
    """Note when it starts and ends; many of them wait for one lock."""
    began = time.time()
    client.rpush(mark, f"{number} {began} {time.time()}")


@app.task(name="relay", bind=True, base=LockedTask, lock_key="relay:{number}")
def relay(self: Any, mark: str, number: int) -> None:
    """Note the same, and publish the next one at its end."""
    began = time.time()
    client.rpush(mark, f"{number} {began} {time.time()}")
    if number:
        self.delay(mark, number - 1)


@app.task(name="free", base=LockedTask, lock_key="free")
def free() -> None:
    """Do nothing under a lock that is free."""
