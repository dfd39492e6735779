"""A writer that does not know that it lost its lock, and a table that rejects its write.

No lock service can stop a write that is already on its way: the writer may pause (a stopped
machine, a long garbage collection) until its lease has ended and another has written. The fence
can: it grows with each lease, and the table rejects a write with a lower fence than the last.

    python -m examples.fenced
"""

import os
import sqlite3
import tempfile
import time

from celery import Celery

from celery_locks import LockedTask, Locks, admin
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.fenced", broker=REDIS, backend=REDIS)
TABLE = "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER, fence INTEGER)"


# on_lost="warn", so that the writer continues; "raise", the default, would stop it in time here.
@app.task(base=LockedTask, bind=True, lock_key="stock:{item}", lock_on_lost="warn")
def write(self: LockedTask[[str, int, float], str], item: str, count: int, pause: float) -> str:
    fence = self.lock.fence
    _run.note(f"{count} has the lock")
    time.sleep(pause)
    return store(item, count, fence)


def store(item: str, count: int, fence: int) -> str:
    """Compare and write in one statement, so that nothing can happen in between."""
    with sqlite3.connect(os.environ["EXAMPLE_STOCK"], timeout=5) as table:
        written = table.execute(
            "UPDATE stock SET count = ?, fence = ? WHERE item = ? AND fence < ?",
            (count, fence, item, fence),
        ).rowcount
    return f"{count} was {'written' if written else 'REFUSED'}, fence {fence}"


def show() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["EXAMPLE_STOCK"] = f"{directory}/stock.sqlite"
        with sqlite3.connect(os.environ["EXAMPLE_STOCK"]) as table:
            table.execute(TABLE)
            table.execute("INSERT INTO stock VALUES ('tea', 0, 0)")
        with _run.running(app, "--concurrency=2") as worker:
            _show(worker)


def _show(worker: _run.Child) -> None:
    _run.say("The first writer takes the lock on tea, and pauses before it writes.")
    first = write.delay("tea", 10, 2.0)
    _run.wait_until(lambda: "10 has the lock" in _run.notes(), "the first writer", worker)

    _run.say("Its lock is taken away, as if the lease had lapsed. The writer does not know.")
    admin.force_release(Locks.from_app(app), "stock:tea")

    _run.say("A second writer takes the lock and writes.")
    _run.say(f"Second writer: {write.delay('tea', 20, 0.0).get(timeout=10)}.")
    _run.say(f"First writer, late: {first.get(timeout=10)}.")

    with sqlite3.connect(os.environ["EXAMPLE_STOCK"]) as table:
        [(count,)] = table.execute("SELECT count FROM stock")
    _run.say(f"There are {count} in the table.")
    if count != 20:
        raise SystemExit("Error: the late write was accepted.")


if __name__ == "__main__":
    _run.main(show)
