"""Tasks with several keys and with a shared lock, for real workers; the URL is in a variable."""

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_locks import LockedTask, current_lease

URL = os.environ.get("SEVERAL_URL", "redis://localhost:6379/0")
app = Celery("several", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_proc_alive_timeout = 60
app.conf.locks_url = os.environ.get("SEVERAL_LOCKS_URL")  # None: that of the broker


def wait_for_gate(gate: str) -> None:
    """Return when the test opens the gate, or after a minute."""
    with redis.Redis.from_url(URL) as client:
        ends = time.monotonic() + 60
        while not client.exists(gate) and time.monotonic() < ends:
            time.sleep(0.02)


@app.task(
    name="pack",
    base=LockedTask,
    lock_key=["tenant:{tenant}", "warehouse"],
    lock_limit=[1, 2],
    lock_on_conflict="wait",
)
def pack(tenant: int, gate: str) -> dict[str, int]:
    wait_for_gate(gate)
    lease: Any = current_lease()
    lease.check()
    fences: dict[str, int] = lease.fences
    return fences


@app.task(name="read", base=LockedTask, lock_key="doc:{n}", lock_shared=True, lock_wait=60)
def read(n: int, gate: str) -> str:
    wait_for_gate(gate)
    return "read"


@app.task(name="write", base=LockedTask, lock_key="doc:{n}", lock_wait=60)
def write(n: int, gate: str) -> str:
    wait_for_gate(gate)
    return "wrote"
