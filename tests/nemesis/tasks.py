"""The app of the workers and of the publisher, configured by one environment variable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery

from celery_locks import LeaseLost, LockedTask
from tests.nemesis.journal import Journal

VARIABLE = "CELERY_LOCKS_NEMESIS"
TTL = 3.0
# A message of a killed worker returns after this many seconds; a requeued one after a quarter.
VISIBILITY_TIMEOUT = 6
# The locks of a row, with their limits.
LIMITS = {"long": 1, "brief": 1, "pair": 2}


def limit_of(lock: str) -> int:
    """Return the limit of a lock, which is named after its row: ``flushall:pair``."""
    return LIMITS[lock.partition(":")[2]]


def make_app(conf: dict[str, Any]) -> Celery:
    """``conf`` has broker_url, locks_url and directory."""
    app = Celery("nemesis", broker=conf["broker_url"], set_as_current=False)
    app.conf.update(
        locks_url=conf["locks_url"],
        locks_ttl=TTL,
        task_default_queue="nemesis",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            **conf.get("transport", {}),
        },
    )

    @app.task(
        base=LockedTask,
        bind=True,
        name="work",
        shared=False,
        lock_key="nemesis:{lock}",
        lock_limit=lambda row, job, lock, seconds: limit_of(lock),
        lock_on_conflict="wait",
        autoretry_for=(LeaseLost,),
        max_retries=None,
        retry_kwargs={"countdown": 0.2},
    )
    def work(self: Any, row: str, job: str, lock: str, seconds: float) -> None:
        with Journal(Path(conf["directory"]), row).run(job, lock, self.lock) as pen:
            pen.work(seconds)

    return app


if VARIABLE in os.environ:
    app = make_app(json.loads(os.environ[VARIABLE]))
