"""A payment callback that arrives three times, and a flash sale with more buyers than items.

The lock prevents two runs at once, the mark prevents a second run: the callback's work is done
once, and a repeat gets the result of the first. The inventory gives an item to a user and records
it in one atomic step: 100 items are never given to 101 people.

    python -m examples.payments_and_flash_sale
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery

from celery_locks import LockedTask, Locks, admin, single_instance
from celery_locks.recipes import Tickets
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.payments_and_flash_sale", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask)
@single_instance(key="payment:{payment_id}", once=86400, on_conflict="wait")
def payment_callback(payment_id: str, provider_fails: bool = False) -> dict[str, Any]:
    _run.note(f"booking {payment_id}")
    time.sleep(0.2)
    if provider_fails:
        raise OSError("the bank does not answer")
    return {"payment": payment_id, "status": "booked"}


def show() -> None:
    with _run.running(app, "--concurrency=3"):
        locks = Locks.from_app(app)
        _book(locks)
        _sell(locks)


def _book(locks: Locks) -> None:
    results = [payment_callback.delay("p-1") for _ in range(3)]
    answers = [result.get(timeout=10)["status"] for result in results]
    booked = _run.notes().count("booking p-1")
    _run.say(f"The callback of p-1 arrived 3 times: booked {booked} time, answers {answers}.")

    try:
        payment_callback.delay("p-2", provider_fails=True).get(timeout=10)
    except OSError as error:
        _run.say(f"p-2 failed ({error}): no mark is left.")
    answer = payment_callback.delay("p-2").get(timeout=10)
    _run.say(f"The provider's retry of p-2: {answer['status']}.")

    done = sorted(work.key for work in admin.list_done(locks))
    _run.say(f"Done: {', '.join(done)}.")
    admin.reset_done(locks, "payment:p-1")
    payment_callback.delay("p-1").get(timeout=10)
    booked = _run.notes().count("booking p-1")
    _run.say(f"An operator resets p-1, and it is booked again: {booked} times in total.")
    if booked != 2:
        raise SystemExit("Error: p-1 must be booked twice.")


def _sell(locks: Locks) -> None:
    tickets = Tickets(locks)
    tickets.stock("sale", [f"item-{number}" for number in range(100)])
    users = [f"user-{number}" for number in range(300)] * 4
    random.shuffle(users)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda user: tickets.take("sale", user).status, users))
    counts = {status: answers.count(status) for status in ("taken", "already", "sold_out")}
    _run.say(f"300 buyers, four clicks each, for 100 items: {counts}.")
    sold = tickets.sold("sale")
    _run.say(
        f"{len(sold)} buyers have {len(set(sold.values()))} items, {tickets.left('sale')} left."
    )
    if not len(sold) == len(set(sold.values())) == counts["taken"] == 100:
        raise SystemExit("Error: oversold, or two buyers have the same item.")
    back = tickets.give_back("sale", next(iter(sold)))
    late = tickets.take("sale", "user-late")
    _run.say(f"One is given back, and user-late gets {'it' if late.item == back else 'another'}.")


if __name__ == "__main__":
    _run.main(show)
