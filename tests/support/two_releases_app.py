"""The app of ``celery_app`` with the tasks that several releases run together."""

from __future__ import annotations

import time
from typing import Any

from celery_locks import LockedTask
from tests.support.celery_app import app, client_of, noted, pass_gate
from tests.support.keys import key_alone

_locked: dict[str, Any] = {"base": LockedTask, "bind": True, "shared": False, "lock_key": key_alone}


@app.task(name="contend", **_locked)
def contend(self: Any, key: str, gate: str | None = None) -> None:
    """Count the runs that find another one inside."""
    client = client_of(app.conf.journal_url)
    if client.incr(f"inside:{key}") > 1:
        client.incr(f"overlaps:{key}")
    with noted(app, self, ttl=self.lock.ttl):
        time.sleep(0.02)
        pass_gate(app, gate)
    client.decr(f"inside:{key}")


@app.task(name="bounce", lock_scope="queued+running", max_retries=None, **_locked)
def bounce(self: Any, key: str, queues: list[str]) -> list[str]:
    """Retry in each of the queues, in turn.

    The work ends before ``retry``, which publishes the next attempt while this one still runs.
    """
    with noted(app, self, ttl=self.lock.ttl):
        pass
    if self.request.retries < len(queues):
        raise self.retry(queue=queues[self.request.retries], countdown=0)
    return queues
