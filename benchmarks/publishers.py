"""One process that publishes for one candidate, loaded in the candidate's own environment.

``python -m benchmarks.publishers``: each line on stdin is ``[kind, number]``, and the reply
is the seconds of every call. Each candidate is set up as the start of its own documentation shows,
so that a second call while the first is queued returns its result and raises no error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import celery

NAME, URL = os.environ["BENCH_CANDIDATE"], os.environ["BENCH_URL"]

app = celery.Celery("bench", broker=URL, backend=URL)
app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": URL}}


def _options() -> dict[str, Any]:
    if NAME == "celery-locks":
        from celery_locks import LockedTask

        return {"base": LockedTask, "lock_key": "bench:{key}", "lock_scope": "queued+running"}
    if NAME == "celery-once":
        from celery_once import QueueOnce

        return {"base": QueueOnce, "once": {"graceful": True}}
    if NAME == "celery-singleton":
        from celery_singleton import Singleton

        return {"base": Singleton}
    if NAME == "celery-heimdall":
        from celery_heimdall import HeimdallTask

        # By default a caller waits up to a second for the other run: 10,000 calls would take hours.
        return {
            "base": HeimdallTask,
            "heimdall": {"unique": True, "unique_lock_blocking": False},
        }
    return {}


@app.task(name="bench.publish", **_options())
def publish(key: str) -> None:
    """Do nothing; no worker runs it."""


_new = count()


def _keys(kind: str, number: int) -> Iterator[str]:
    for _ in range(number):
        yield "the one" if kind == "same" else f"new {next(_new)}"


def _timed(kind: str, number: int) -> list[float]:
    taken = []
    for key in _keys(kind, number):
        began = time.perf_counter()
        publish.delay(key)
        taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_timed(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
