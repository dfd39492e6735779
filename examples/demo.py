"""The tour: ``make demo``, or ``python -m examples.demo``. It takes less than half a minute.

A Valkey of its own is broker, result backend and lock server; a Celery worker with four processes
runs the tasks below. Nothing else is needed and nothing is left behind, not even after Ctrl-C.
"""

import os
import signal
import sys
import time
from typing import Any

from celery import Celery

from celery_locks import LockedTask, Locks, single_instance
from examples import _run
from examples._screen import Screen, screen, watch

REDIS = "redis://localhost:6379/0"
TTL = 30
app = Celery("examples.demo", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask)
@single_instance(key="invoice:{number}", ttl=TTL)
def bill(number: int) -> str:
    time.sleep(1.5)
    return "billed"


@app.task(base=LockedTask)
@single_instance(key="account:{customer}", ttl=TTL, on_conflict="wait", wait=60)
def book(customer: str, number: int) -> None:
    time.sleep(0.8)


@app.task(base=LockedTask)
@single_instance(key="catalogue", ttl=TTL, on_conflict="wait", wait=60)
def import_catalogue(seconds: float) -> str:
    time.sleep(seconds)
    return "imported"


def one_key(out: Screen, locks: Locks) -> None:
    out.say("1. Five tasks bill invoice 42 at once. It must be billed once.")
    results = [bill.delay(42)]
    watch(out, locks, lambda: locks.is_locked("invoice:42"))
    results += [bill.delay(42) for _ in range(4)]
    watch(out, locks, lambda: all(r.ready() for r in results))
    values: list[Any] = [r.get() for r in results]
    skips = [value for value in values if value != "billed"]
    out.say(
        f"   {values.count('billed')} run billed it. {len(skips)} were skipped, and their results "
        f"say so:\n   the lock {skips[0]['lock']} was held by process {skips[0]['holder']['pid']}."
    )


def different_keys(out: Screen, locks: Locks) -> None:
    out.say("2. Invoices 1, 2 and 3 do not block each other: each has its own lock.")
    began = time.monotonic()
    results = [bill.delay(number) for number in (1, 2, 3)]
    watch(out, locks, lambda: all(r.ready() for r in results))
    took = time.monotonic() - began
    out.say(f"   Three runs of 1.5 s took {took:.1f} s together.")


def in_line(out: Screen, locks: Locks) -> None:
    out.say("3. Three bookings for ann, one at a time, none skipped: they wait in a queue.")
    results = [book.delay("ann", number) for number in (1, 2, 3)]
    watch(out, locks, lambda: all(r.ready() for r in results))
    out.say("   Each release handed the lock to the next waiter.")


def kill_nine(out: Screen, locks: Locks) -> None:
    out.say(
        f"4. An import runs for a minute; its lock has a ttl of {TTL} s. A second import waits."
    )
    import_catalogue.delay(60)
    watch(out, locks, lambda: locks.is_locked("catalogue"))
    second = import_catalogue.delay(1.0)
    watch(out, locks, lambda: _waiting(locks, "catalogue"))
    [holder] = locks.holders("catalogue")
    assert holder.pid

    out.say(f"   kill -9 {holder.pid}: the process that holds the lock dies without releasing it.")
    killed = time.monotonic()
    os.kill(holder.pid, signal.SIGKILL)
    while any(h.token == holder.token for h in locks.holders("catalogue")):
        if time.monotonic() - killed > TTL + 5:
            raise SystemExit("Error: the lock was not released.")
        time.sleep(0.001)
    back = time.monotonic() - killed
    watch(out, locks, second.ready)
    out.say(
        f"   The lock was free after {back * 1000:.0f} ms, and the second import got it: "
        f"{second.get()}.\n   Waiting for the lock to lapse would have taken up to {TTL} s."
    )


def _waiting(locks: Locks, name: str) -> bool:
    info = locks.info(name)
    return bool(info and info.waiters)


def show() -> None:
    with screen(plain="--plain" in sys.argv) as out:
        out.say("Starting a Celery worker with four processes, on a Valkey of its own ...")
        with _run.running(app, "--concurrency=4"):
            locks = Locks.from_app(app)
            one_key(out, locks)
            different_keys(out, locks)
            in_line(out, locks)
            kill_nine(out, locks)
            watch(out, locks, lambda: not locks.is_locked("catalogue"))
        out.say("Done. The worker has stopped; the server stops now.")


if __name__ == "__main__":
    _run.main(show)
