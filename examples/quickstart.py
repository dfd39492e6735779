"""The five-line app: a task that runs once at a time for each invoice.

Run it with a server of its own:

    python -m examples.quickstart

or with your own Redis on localhost, in two terminals:

    celery -A examples.quickstart worker --concurrency 4
    python -c "from examples.quickstart import bill; print(bill.delay(42).get())"
"""

import time

from celery import Celery

from celery_locks import LockedTask, Locks, single_instance
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.quickstart", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask)
@single_instance(key="invoice:{number}", ttl=30)
def bill(number: int) -> str:
    time.sleep(1)
    return f"invoice {number} is billed"


def show() -> None:
    with _run.running(app, "--concurrency=4") as worker:
        locks = Locks.from_app(app)
        _run.say("Billing invoice 42 takes a second.")
        first = bill.delay(42)
        _run.wait_until(lambda: locks.is_locked("invoice:42"), "the task to take its lock", worker)

        _run.say("While it runs, 42 is sent twice more, and 43 once.")
        again, once_more, other = bill.delay(42), bill.delay(number=42), bill.delay(43)

        for result in (again, once_more):
            skip = result.get(timeout=10)
            _run.say(f"42 again: skipped, {skip['lock']} is held by pid {skip['holder']['pid']}.")
        _run.say(f"The first 42: {first.get(timeout=10)}.")
        _run.say(f"43: {other.get(timeout=10)}.")

        _run.say(f"42 again, now that the lock is free: {bill.delay(42).get(timeout=10)}.")


if __name__ == "__main__":
    _run.main(show)
