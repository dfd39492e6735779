"""The app of ``tests/acceptance/test_smoke.py``; the environment says where its server is."""

import time
from typing import Any

from celery import Celery

from celery_locks import LockedTask, single_instance

app = Celery("tests.support.smoke_app")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_proc_alive_timeout = (
    60  # Celery kills a child that a busy machine starts too slowly
)


@app.task(base=LockedTask, bind=True, max_retries=2)
@single_instance(key="invoice:{number}", ttl=3)
def bill(self: Any, number: int, seconds: float = 0.0, retries: int = 0) -> str:
    if self.request.retries < retries:
        # Not 0: Celery may then write "RETRY" over the result of an attempt that was faster.
        raise self.retry(countdown=0.3)
    time.sleep(seconds)
    self.lock.check()
    return str(self.lock.name)


@app.task
@single_instance(key="account:{customer}", on_conflict="wait", wait=30)
def book(customer: str, seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return "booked"


@app.task(base=LockedTask, lock_key="export:{customer}", lock_on_conflict="requeue")
def export(customer: str, seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return "exported"
