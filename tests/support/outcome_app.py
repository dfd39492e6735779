"""The Celery app whose tasks end in every way there is; run by real workers.

Each task takes its lock's name as ``key`` and writes a journal of itself. ``act`` first waits at a
gate, so that a test can line up who comes next before it happens.
"""

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

import redis
from celery import Celery
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject

from celery_locks import LockedTask, LockRevoked, State, admin, single_instance
from celery_locks.clock import now
from celery_locks.integration.app_locks import locks_of
from tests.support.journal import Pen
from tests.support.keys import key_alone

BROKER = os.environ.get("OUTCOME_BROKER", "redis://localhost:6379/0")
LOCKS = os.environ.get("OUTCOME_LOCKS", BROKER)
JOURNAL = os.environ.get("OUTCOME_JOURNAL", BROKER)

app = Celery("outcomes", broker=BROKER, backend=BROKER)
app.conf.update(
    locks_url=LOCKS,
    locks_ttl=30,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_proc_alive_timeout=60,  # Celery kills a child that a busy machine starts too slowly
    broker_transport_options={"socket_timeout": 5},
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_pool_start_method=os.environ.get("OUTCOME_START_METHOD", "fork"),
    worker_soft_shutdown_timeout=float(os.environ.get("OUTCOME_SOFT_SHUTDOWN", "0")),
)


def pen_of(task: Any, key: str) -> Pen:
    return Pen(JOURNAL, key, task.name, task.lock.fence)


def wait_at_gate(key: str) -> None:
    with redis.Redis.from_url(JOURNAL, socket_timeout=None) as client:
        client.blpop([f"gate:{key}"], timeout=60)


# How a task ends.


def succeed(task: Any, pen: Pen) -> str:
    return "fine"


def fail(task: Any, pen: Pen) -> None:
    raise ValueError("as planned")


def unserialisable(task: Any, pen: Pen) -> object:
    return object()


def ignore(task: Any, pen: Pen) -> None:
    raise Ignore("as planned")


def replace(task: Any, pen: Pen) -> None:
    task.replace(plain.si())


def reject(task: Any, pen: Pen) -> None:
    raise Reject("as planned", requeue=False)


def retry(task: Any, pen: Pen) -> str:
    if not task.request.retries:
        task.retry(countdown=0, max_retries=1)
    return "second attempt"


def exit_by_exception(task: Any, pen: Pen) -> None:
    raise SystemExit("as planned")


def keyboard_interrupt(task: Any, pen: Pen) -> None:
    raise KeyboardInterrupt


def out_of_memory(task: Any, pen: Pen) -> None:
    raise MemoryError("as planned")


def exit_at_once(task: Any, pen: Pen) -> None:
    os._exit(3)


def hang(task: Any, pen: Pen) -> None:
    """Until something ends it."""
    while True:
        pen.write("beat")
        time.sleep(0.002)


def hang_on(task: Any, pen: Pen) -> str:
    """Deaf to SIGTERM: goes on for a second after it."""
    heard = 0.0
    while not heard or time.time() - heard < 1.0:
        try:
            pen.write("beat")
            time.sleep(0.002)
        except SystemExit:
            heard = heard or time.time()
    pen.write("ends by itself")
    return "deaf"


def hang_on_for_ever(task: Any, pen: Pen) -> None:
    while True:
        try:
            pen.write("beat")
            time.sleep(0.002)
        except SystemExit:
            pass


WAYS: dict[str, Callable[[Any, Pen], Any]] = {
    way.__name__: way
    for way in (
        *(succeed, fail, unserialisable, ignore, replace, reject, retry, exit_by_exception),
        *(keyboard_interrupt, out_of_memory, exit_at_once, hang, hang_on, hang_on_for_ever),
    )
}


@app.task
def plain() -> str:
    return "plain"


@app.task(base=LockedTask)
def noop() -> None:
    """For counting what a lock costs."""


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone)
def act(self: Any, key: str, way: str) -> Any:
    pen = pen_of(self, key)
    pen.write("start")
    if not self.request.retries:
        wait_at_gate(key)
    pen.write("through the gate")
    return WAYS[way](self, pen)


class BrokenBackend(DisabledBackend):
    """Takes no result."""

    def store_result(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("the result backend is broken, as planned")

    def mark_as_done(self, *args: Any, **kwargs: Any) -> None:
        self.store_result()


@app.task(bind=True, base=LockedTask, backend=BrokenBackend(app))
@single_instance(key=key_alone)
def act_unstored(self: Any, key: str) -> str:
    pen = pen_of(self, key)
    pen.write("start")
    wait_at_gate(key)
    pen.write("through the gate")
    return "nobody will know"


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, on_conflict="wait")
def follow(self: Any, key: str) -> int:
    """Stands in line for the lock; its start is the moment the lock was free."""
    pen_of(self, key).write("start")
    return os.getpid()


# What a task may be at while its lock is renewed for it.


def sleep(seconds: float) -> None:
    ends = time.time() + seconds
    while time.time() < ends:
        time.sleep(0.02)


def hold_gil(seconds: float) -> None:
    """One call of C code that neither lets go of the GIL nor looks at signals."""
    size = 5_000_000
    began = time.perf_counter()
    deque(repeat(None, size), maxlen=0)
    deque(repeat(None, int(size * seconds / (time.perf_counter() - began))), maxlen=0)
    sleep(seconds - (time.perf_counter() - began))


def regex(seconds: float) -> None:
    """A pattern that backtracks catastrophically, sized to the machine."""
    began, size = time.perf_counter(), 16
    while True:
        one = time.perf_counter()
        re.match(r"(a|a)*$", "a" * size + "b")
        took = time.perf_counter() - one
        if time.perf_counter() - began >= seconds:
            return
        if took < seconds:
            size += 1


def compute(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        sum(range(1000))


def stop_itself(seconds: float) -> None:
    """Frozen until somebody says SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


WORK = {work.__name__: work for work in (sleep, hold_gil, regex, compute, stop_itself)}


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=3)
def work(self: Any, key: str, kind: str, seconds: float) -> int:
    pen = pen_of(self, key)
    pen.write("start")
    try:
        if kind == "until_told":
            wait_at_gate(key)
        else:
            WORK[kind](seconds)
        self.lock.check()
        pen.write("done")
    finally:
        pen.write("over")
    return os.getpid()


# Losing it.


def _lose(task: Any, key: str, seconds: float) -> str:
    pen = pen_of(task, key)
    pen.write("start")
    sleep(seconds)
    pen.write("written after the sleep")
    return str(task.lock.state)


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=2)
def lose(self: Any, key: str, seconds: float) -> str:
    return _lose(self, key, seconds)


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=15)
def lose_early(self: Any, key: str, seconds: float) -> str:
    return _lose(self, key, seconds)


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=2)
def give_in(self: Any, key: str, seconds: float) -> str:
    """Catches it by its own name, as a task that cleans up does."""
    try:
        return _lose(self, key, seconds)
    except LockRevoked as error:
        return f"{error.by} said {error.why}"


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=2, on_lost="warn")
def lose_quietly(self: Any, key: str, seconds: float) -> str:
    return _lose(self, key, seconds)


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=2)
def look_after_it(self: Any, key: str, seconds: float) -> None:
    """Asks by itself, as a task must where nothing can be raised in it."""
    pen = pen_of(self, key)
    pen.write("start")
    ends = time.time() + seconds
    while time.time() < ends:
        time.sleep(0.02)
        self.lock.check()
    pen.write("written after the sleep")


@app.task(bind=True, base=LockedTask)
@single_instance(key="outer:{key}", ttl=2)
def call_another(self: Any, key: str) -> None:
    """Calls a locked task directly, then goes on under its own lock."""
    pen = pen_of(self, key)
    lose_quietly(f"inner:{key}", 0.1)
    pen.write("start")
    sleep(20)
    pen.write("written after the sleep")


@app.task(bind=True, base=LockedTask)
@single_instance(key=key_alone, ttl=1)
def race(self: Any, key: str, late: float, renewed: bool) -> str:
    """Takes the lock from itself and ends at the moment when it is told so, or ``late`` after.

    With ``renewed`` only after the main process has taken on the renewing, so that it tells too.
    """
    lease = self.lock
    if renewed:
        time.sleep(lease.ttl / 3 + 0.1)
    admin.force_release(locks_of(app), key)
    # The keeper tells when a third of the ttl is over; once the main process renews, a child also
    # asks by itself with a third left.
    asks_at = lease.deadline - lease.ttl / 3 * (1 if renewed else 2)
    while lease.state is State.HELD and now() < asks_at - 0.02:
        time.sleep(0.002)
    while lease.state is State.HELD and now() < asks_at + late:
        pass
    return "ended"
