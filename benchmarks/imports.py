"""The time that importing celery-locks adds to an app that uses Redis anyway.

Both are timed in one fresh process, one after the other, so a ratio has the same machine on both
sides. The app's part: Celery, an app with a Redis broker and result backend, finalised, with the
broker's transport and the backend loaded (which import redis-py) but not connected.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.effort import FULL, Effort
from benchmarks.peers import load
from benchmarks.report import Report
from benchmarks.timing import p50
from tests.servers.embedded import EmbeddedServer

PROCESSES = 11
_PROGRAM = """
import time
began = time.perf_counter()
from celery import Celery
app = Celery("app", broker="redis://", backend="redis://")
app.finalize()
app.connection_for_write().transport, app.backend, app.amqp
between = time.perf_counter()
{ours}
print(between - began, time.perf_counter() - between)
"""
USUAL, ALL = "LockedTask and single_instance", "every public name"
_OURS = {
    USUAL: "from celery_locks import LockedTask, single_instance",
    ALL: "import celery_locks\nfor name in celery_locks.__all__: getattr(celery_locks, name)",
}


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report("imports", "Importing celery-locks", ("", "p50 ms", "× the app without"))
    began = load()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in _OURS}
    for name in _OURS:
        _once(name)  # bytecode is written
    processes = effort.count(PROCESSES)
    for _ in range(processes):
        for name, pairs in taken.items():
            pairs.append(_once(name))
    apps = [app for pairs in taken.values() for app, _ in pairs]
    report.add("an app on Redis without it", p50(apps) * 1e3, 1.0)
    for name, pairs in taken.items():
        ratio = p50([ours / app for app, ours in pairs])
        report.add(f"more with {name}", p50([ours for _, ours in pairs]) * 1e3, ratio)
        report.at_most(f"{name}, more", 20, ratio * 100, " %")
    report.notes.append(
        f"Medians of {processes} fresh processes each, ratios within each. "
        f"Load when it began: {began}."
    )
    return report


def _once(name: str) -> tuple[float, float]:
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(ours=_OURS[name])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    app, ours = map(float, done.stdout.split())
    return app, ours
