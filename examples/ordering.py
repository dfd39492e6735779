"""One task at a time for each customer, in two ways.

wait     waits inside the worker, first come, first served, and occupies a worker slot while it
         waits. For short work whose order matters.
requeue  puts the message back and frees the slot. For long work; the order is not kept.

    python -m examples.ordering
"""

import time

from celery import Celery

from celery_locks import LockedTask, Locks, single_instance
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.ordering", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask)
@single_instance(key="account:{customer}", on_conflict="wait", wait=30)
def book(customer: str, number: int) -> None:
    _run.note(f"{customer} {number} begins")
    time.sleep(0.5)
    _run.note(f"{customer} {number} ends")


@app.task(base=LockedTask)
@single_instance(key="export:{customer}", on_conflict="requeue", wait=60)
def export(customer: str, number: int) -> None:
    _run.note(f"{customer}'s export {number} begins")
    time.sleep(0.5)
    _run.note(f"{customer}'s export {number} ends")


def show() -> None:
    with _run.running(app, "--concurrency=4") as worker:
        locks = Locks.from_app(app)

        def callers() -> int:
            info = locks.info("account:ann")
            return len(info.holders) + len(info.waiters) if info else 0

        _run.say("wait: three bookings for ann, one for bob.")
        bookings = []
        for number in (1, 2, 3):
            bookings.append(book.delay("ann", number))
            # Send the next one only now, so that the order of arrival is certain.
            _run.wait_until(lambda n=number: callers() == n, "it to wait", worker)
        _run.say("One has the lock, two wait for it.")
        bookings.append(book.delay("bob", 1))
        for booking in bookings:
            booking.get(timeout=15)
        _print_notes(expect_order=True)

        _run.say("requeue: three exports for ann, one for bob.")
        before = len(_run.notes())
        exports = [export.delay("ann", number) for number in (1, 2, 3)]
        exports.append(export.delay("bob", 1))
        for result in exports:
            result.get(timeout=15)
        _print_notes(before)
        returned = worker.log(1000).count("is put back")
        _run.say(f"Never two of ann's at once; messages were put back {returned} times.")


def _print_notes(start: int = 0, expect_order: bool = False) -> None:
    lines = _run.notes()[start:]
    for line in lines:
        print(f"            {line}")
    of_ann = [line for line in lines if line.startswith("ann")]
    for begins, ends in zip(of_ann[::2], of_ann[1::2], strict=True):
        if begins.replace("begins", "ends") != ends:
            raise SystemExit("Error: two of ann's tasks overlapped.")
    if expect_order and of_ann != sorted(of_ann):
        raise SystemExit("Error: ann's bookings ran out of order.")


if __name__ == "__main__":
    _run.main(show)
