"""Agent runs on many workers: one run per id, visible everywhere, stopped from anywhere.

A hand-written solution needs four kinds of keys and two channels: a lock per run whose ttl nobody
renews, marks of what is active where, control channels for STOP. Here the lock is renewed during
the run, the list of locks shows what runs where, and the renewal brings the request to stop.

    python -m examples.agent_runs
"""

import time
from typing import Any

from celery import Celery

from celery_locks import LockedTask, Locks, StopRequested
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.agent_runs", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask, bind=True, lock_key="agent_run:{run_id}", lock_ttl=2)
def agent_run(self: LockedTask[[str, int], str], run_id: str, responses: int) -> str:
    _run.note(f"{run_id} begins")
    try:
        for _ in range(responses):
            time.sleep(0.05)  # a response of the model
            self.lock.check()  # no I/O; raises if the lock is lost or a stop was requested
    except StopRequested:
        return "stopped"
    finally:
        _run.note(f"{run_id} is cleaned up")
    return "completed"


def show() -> None:
    with _run.running(app, "--concurrency=3", "--hostname=agents-1@fleet") as worker:
        _show(worker, Locks.from_app(app))


def _show(worker: _run.Child, locks: Locks) -> None:
    long = {run_id: agent_run.delay(run_id, 1000) for run_id in ("r1", "r2")}
    for run_id in long:
        _run.wait_until(lambda run=run_id: f"{run} begins" in _run.notes(), run_id, worker)
    again: Any = agent_run.delay("r1", 1).get(timeout=10)
    _run.say(f"r1 again: skipped, it runs on {again['holder']['worker']}.")

    runs = locks.active(worker="agents-1@fleet")
    _run.say(f"Active on agents-1@fleet: {', '.join(sorted(run.name for run in runs))}.")
    is_locked = locks.is_locked("agent_run:r1", max_age=5)
    _run.say(f"Is r1 locked (the answer may be 5 s old)? {is_locked}.")

    began = time.monotonic()
    [holder] = locks.stop("agent_run:r1")
    _run.say(f"STOP for r1, to pid {holder.pid}.")
    _run.say(f"r1: {long['r1'].get(timeout=10)}, {time.monotonic() - began:.1f} s later.")
    if long["r2"].ready():
        raise SystemExit("r2 was not asked to stop.")

    locks.stop("agent_run:r2", locks.holders("agent_run:r2")[0].token)
    _run.say(f"STOP for one holder of r2 by its token: {long['r2'].get(timeout=10)}.")
    _run.wait_until(lambda: not locks.active(), "the locks to be free", worker)
    cleaned = sum("cleaned up" in line for line in _run.notes())
    _run.say(f"{cleaned} runs cleaned up after themselves, {len(locks.active())} are active.")


if __name__ == "__main__":
    _run.main(show)
