"""The app of the soak run's workers and publisher, configured by one environment variable."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_locks import LeaseLost, LockedTask
from tests.histories.recorder import install_if_wanted
from tests.soak.journal import Journal

VARIABLE = "CELERY_LOCKS_SOAK"
# A message of a killed worker returns after this many seconds.
VISIBILITY_TIMEOUT = 8
QUEUE = "soak"
# For messages whose turn has come: the other queue grows long while the machine is overloaded.
WAKE_QUEUE = "woken"
# Every second account parks nothing: the checker of histories does not know parked messages.
UNPARKED_POLICIES = ("wait", "requeue")
KEPT_POLICY = "park"
POLICIES = (*UNPARKED_POLICIES, KEPT_POLICY)


def make_app(conf: dict[str, Any]) -> Celery:
    """``conf`` has broker_url, locks_url, directory, and ``locked``: with locks or without."""
    app = Celery("soak", broker=conf["broker_url"], set_as_current=False)
    app.conf.update(
        locks_url=conf["locks_url"],
        locks_ttl=10,
        locks_recover_after=5,
        locks_wake_queue=WAKE_QUEUE,
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # A worker that is killed while it restores messages leaves kombu's lock for this.
            "unacked_mutex_expire": VISIBILITY_TIMEOUT,
        },
    )
    journal = Journal(Path(conf["directory"]))
    if conf["locked"]:
        _add_locked_tasks(app, journal)
    else:
        _add_plain_tasks(app, journal)
    return app


def _add_locked_tasks(app: Celery, journal: Journal) -> None:
    """One task that blocks while the lock is busy, one that is published again, one that is parked.

    The message of the last one is kept until it starts.
    """
    for policy in POLICIES:
        is_parked = policy == KEPT_POLICY

        @app.task(
            base=LockedTask,
            bind=True,
            name=policy,
            shared=False,
            lock_key="account:{account}",
            lock_on_conflict=policy,
            lock_scope="queued+running" if is_parked else "running",
            lock_keep_message=is_parked,
            autoretry_for=(LeaseLost,),
        )
        def work(self: Any, job: str, account: int, seconds: float) -> None:
            with journal.run(job, account, self.lock.fence):
                time.sleep(seconds)


def _add_plain_tasks(app: Celery, journal: Journal) -> None:
    for policy in POLICIES:

        @app.task(name=policy, shared=False)
        def work(job: str, account: int, seconds: float) -> None:
            with journal.run(job, account, fence=0):
                time.sleep(seconds)


if VARIABLE in os.environ:
    install_if_wanted()
    app = make_app(json.loads(os.environ[VARIABLE]))
