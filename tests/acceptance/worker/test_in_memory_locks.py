"""Celery's ``celery_worker`` fixture runs a worker in a thread: it must meet the same locks."""

from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_locks import LockedTask
from celery_locks.testing import assert_skipped, hold_lock, in_memory_locks, locks_disabled


def test_in_memory_locks_reach_a_worker_in_this_process() -> None:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}

    @app.task(base=LockedTask, bind=True, name="bill", lock_key="invoice:{n}", shared=False)
    def bill(self: Any, n: int) -> str:
        return str(self.lock.name)

    with in_memory_locks(app), start_worker(app, pool="solo", perform_ping_check=False):
        assert bill.delay(1).get(timeout=10) == "invoice:1"
        with hold_lock("invoice:1", app=app):
            assert_skipped(bill.delay(1))
        with locks_disabled():
            assert bill.delay(1).get(timeout=10) == ""
    app.close()
