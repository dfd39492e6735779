"""An app whose beats number the runs that they send, and whose task notes them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery
from celery.beat import ScheduleEntry

from celery_locks import leader
from celery_locks.beat import SingleBeat

RUNS = "runs"
TERMS = "terms"
CONF_VARIABLE = "BEAT_APP_CONF"

_conf: dict[str, Any] = json.loads(os.environ.get(CONF_VARIABLE, "{}"))
_url = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")

app = Celery("tests.support.beat_app", broker=_url, set_as_current=False)
app.conf.update(
    beat_scheduler="tests.support.beat_app:NumberedBeat",
    beat_schedule={
        "fast": {"task": "note", "schedule": 1.0, "args": ["fast"]},
        "slow": {"task": "note", "schedule": 2.5, "args": ["slow"]},
    },
    locks_beat_ttl=3,
    locks_ttl=3,
    broker_connection_retry_on_startup=True,
)
app.conf.update(_conf)


class NumberedBeat(SingleBeat):
    """Sends with each run its number, its time and the pid of the beat."""

    def apply_async(self, entry: ScheduleEntry, *args: Any, **options: Any) -> Any:
        entry.kwargs = {
            "number": entry.total_run_count + 1,
            "sent_at": time.time(),
            "pid": os.getpid(),
        }
        return super().apply_async(entry, *args, **options)


@app.task(name="note", shared=False)
def note(entry: str, **run: Any) -> None:
    _push(RUNS, {"entry": entry, **run})


primary = leader(app, "primary")


@app.task(name="term", shared=False)
def term() -> None:
    """Note what this pool child knows of the leader."""
    _push(TERMS, [os.getppid(), primary.is_leader, primary.fence])


def _push(key: str, value: Any) -> None:
    with redis.Redis.from_url(_url) as client:
        client.rpush(key, json.dumps(value))
