"""The app that the worker tests drive: a few tasks that say when they run and wait when told to.

The worker (a subprocess) and the test build the same app from the same settings; those of the
worker come in an environment variable. Every task writes to one journal on the server, so that a
test reads what ran, where and when. A task given a gate goes on when the test opens it: no test
depends on how long something takes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery, Task, shared_task, signals
from pydantic import BaseModel

import celery_locks
from celery_locks import (
    LockedTask,
    LockEvent,
    current_lease,
    limited,
    metrics,
    rate_limited,
    single_instance,
    subscribe,
)
from tests.support.keys import key_alone, limit_in_key

CONF_VARIABLE = "CELERY_LOCKS_TEST_CONF"
JOURNAL, EVENTS = "test-journal", "test-events"
_LONGEST_GATE = 60.0
# The release of celery_locks that this process uses; see two_releases.py.
RELEASE = getattr(celery_locks, "RELEASE", "installed")

_clients: dict[tuple[int, str], redis.Redis] = {}


def client_of(url: str) -> redis.Redis:
    """One per process: a client must not be shared over a fork."""
    key = (os.getpid(), url)
    if key not in _clients:
        _clients[key] = redis.Redis.from_url(url)
    return _clients[key]


def make_app(conf: Mapping[str, Any]) -> Celery:
    settings = {name: value for name, value in conf.items() if value is not None}
    app = Celery("tests", set_as_current=False, **settings.pop("celery", {}))
    if django := settings.pop("django", None):
        app.config_from_object(SimpleNamespace(**django), namespace="CELERY")
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_serializer="json",
        worker_hijack_root_logger=False,
        worker_proc_alive_timeout=60,  # Celery kills a child that a busy machine starts too slowly
        **settings,
    )
    _add_tasks(app)
    from tests.support.policy_tasks import add_policy_tasks
    from tests.support.queued_tasks import add_queued_tasks  # it uses what is below

    add_queued_tasks(app)
    add_policy_tasks(app)
    return app


def note(app: Any, what: str, task: Any, **more: Any) -> None:
    lease = current_lease()
    entry = {
        "what": what,
        "task": task.name,
        "id": task.request.id,
        "retries": task.request.retries,
        "pid": os.getpid(),
        "release": RELEASE,
        "at": time.time(),
        "lock": lease.name if lease else None,
        "fence": lease.fence if lease else 0,
        **more,
    }
    client_of(app.conf.journal_url).rpush(JOURNAL, json.dumps(entry))


@contextmanager
def noted(app: Any, task: Any, **more: Any) -> Iterator[None]:
    note(app, "start", task, **more)
    try:
        yield
    finally:
        note(app, "end", task, **more)


def pass_gate(app: Any, gate: str | None) -> None:
    ends = time.monotonic() + _LONGEST_GATE
    while gate and not client_of(app.conf.journal_url).exists(f"gate:{gate}"):
        if time.monotonic() > ends:
            raise TimeoutError(f"nobody opened the gate {gate}")
        time.sleep(0.01)


class Order(BaseModel):
    id: int
    lines: list[str] = []


class Passing(Exception):
    """An error that a second attempt does not have."""


class Deadly:
    """A result that kills the process which serialises it, after the task's end."""

    def __json__(self) -> Any:
        os._exit(7)


def _add_tasks(app: Celery) -> None:
    locked: dict[str, Any] = {"base": LockedTask, "bind": True, "shared": False}

    @app.task(name="echo", shared=False)
    def echo(value: Any = None) -> Any:
        return value

    @app.task(name="gather_ran", shared=False)
    def gather_ran(values: Any) -> Any:
        from celery_locks import without_skipped

        return without_skipped(values)

    @app.task(name="seen", shared=False)
    def seen() -> Any:
        lease = current_lease()
        return [lease.name, lease.ttl] if lease else None

    @app.task(name="gather", shared=False)
    def gather(values: Any) -> Any:
        return values

    @app.task(name="work", lock_key=key_alone, **locked)
    def work(self: Any, key: str, gate: str | None = None) -> Any:
        with noted(app, self):
            pass_gate(app, gate)
            self.lock.check()
        return key

    @app.task(name="slots", lock_key=key_alone, lock_limit=limit_in_key, **locked)
    def slots(self: Any, key: str, gate: str | None = None) -> Any:
        with noted(app, self):
            pass_gate(app, gate)

    @app.task(name="shows", lock_key=key_alone, **locked)
    def shows(self: Any, key: str) -> Any:
        names = ("expires", "timelimit", "retries", "shadow", "ignore_result", "reply_to", "origin")
        return {
            "headers": self.request.headers,
            "priority": self.request.delivery_info["priority"],
            **{word: getattr(self.request, word) for word in names},
        }

    @app.task(name="late", lock_key=key_alone, acks_late=True, **locked)
    def late(self: Any, key: str, gate: str | None = None) -> Any:
        with noted(app, self):
            pass_gate(app, gate)
        return key

    @app.task(
        name="stubborn", lock_key=key_alone, acks_late=True, reject_on_worker_lost=True, **locked
    )
    def stubborn(
        self: Any,
        key: str,
        gate: str | None = None,
        deadly: bool = False,
        retries: bool = False,
        retry_queue: str | None = None,
    ) -> Any:
        first = not client_of(app.conf.journal_url).incr(f"stubborn:{self.request.id}") > 1
        with noted(app, self):
            if retry_queue and first:
                self.retry(queue=retry_queue, countdown=0, throw=False)
                os.kill(os.getpid(), signal.SIGKILL)
            pass_gate(app, gate)
        if retries and first:
            raise self.retry(exc=Passing(Deadly()), countdown=600)
        return Deadly() if deadly and first else key

    @app.task(name="again", lock_key=key_alone, max_retries=3, **locked)
    def again(
        self: Any,
        key: str,
        times: int = 1,
        countdown: float = 0,
        gate: str | None = None,
        throw: bool = True,
    ) -> Any:
        with noted(app, self):
            pass_gate(app, gate)
            if self.request.retries < times:
                self.retry(countdown=countdown, throw=throw)
        return self.request.retries

    @app.task(
        name="auto",
        lock_key=key_alone,
        autoretry_for=(Passing,),
        retry_backoff=False,
        default_retry_delay=0,
        max_retries=2,
        **locked,
    )
    def auto(self: Any, key: str, times: int = 1) -> Any:
        with noted(app, self):
            if self.request.retries < times:
                raise Passing(f"attempt {self.request.retries}")
        return self.request.retries

    @app.task(
        name="dies", lock_key=key_alone, retry_on_worker_lost=True, default_retry_delay=0, **locked
    )
    def dies(self: Any, key: str, times: int = 1) -> Any:
        note(app, "start", self)
        if self.request.retries < times:
            os._exit(9)
        return self.request.retries

    @app.task(name="replaces", acks_late=True, **locked)
    def replaces(self: Any, countdown: float | None = None, times: int = 1) -> Any:
        note(app, "start", self)
        if times:
            raise self.replace(replaces.s(countdown, times - 1).set(countdown=countdown))
        return "replaced"

    @app.task(name="mutates", **locked)
    @single_instance
    def mutates(self: Any, items: list[Any], gate: str | None = None) -> Any:
        with noted(app, self):
            items.append("more")
            pass_gate(app, gate)
        return items

    @app.task(name="by_id", **locked)
    def by_id(self: Any) -> Any:
        with noted(app, self):
            return self.lock.name

    @app.task(name="open", lock_enabled=False, **locked)
    def open_(self: Any) -> Any:
        return bool(self.lock), self.lock.fence, self.lock.check()

    @app.task(name="paced", bind=True, shared=False)
    @rate_limited("20/s", key="paced")
    def paced(self: Any, number: int) -> Any:
        began = time.time()
        note(app, "start", self, number=number, began=began)

    @app.task(name="calls", bind=True, shared=False, max_retries=3)
    @limited(2, key="calls:{tenant}", on_conflict="requeue")
    @rate_limited("5/s", key="calls:{tenant}")
    @rate_limited(lambda tenant, **_: None if tenant == "vip" else ("10/s", "500/m"), key="total")
    def calls(self: Any, tenant: str, retry: bool = False) -> Any:
        note(app, "start", self, tenant=tenant, began=time.time())
        if retry and not self.request.retries:
            raise self.retry(countdown=0)
        return tenant

    _add_placements(app)
    _add_outsiders(app)


def lock_here() -> str | None:
    lease = current_lease()
    return lease.name if lease else None


def _add_placements(app: Celery) -> None:
    """``@single_instance`` wherever it may stand; each task answers with its lock."""

    @app.task(base=LockedTask, name="below_locked", shared=False)
    @single_instance(key="below_locked:{n}")
    def below_locked(n: int) -> Any:
        return lock_here()

    @app.task(name="below_plain", shared=False)
    @single_instance(key="below_plain:{n}")
    def below_plain(n: int) -> Any:
        return lock_here()

    @single_instance(key="above_locked:{n}")
    @app.task(base=LockedTask, name="above_locked", shared=False)
    def above_locked(n: int) -> Any:
        return lock_here()

    @single_instance(key="above_plain:{n}")
    @app.task(name="above_plain", shared=False)
    def above_plain(n: int) -> Any:
        return lock_here()

    @app.task(name="bare", shared=False)
    @single_instance
    def bare(n: int, *, and_: int = 2) -> Any:
        return lock_here()

    @single_instance
    @app.task(name="bare_above", shared=False)
    def bare_above(n: int) -> Any:
        return lock_here()

    @app.task(bind=True, name="bound", shared=False)
    @single_instance(key="bound:{n}")
    def bound(self: Any, n: int) -> Any:
        return self.lock.name

    @app.task(
        base=LockedTask, lock_key=lambda n, **_: f"callable:{n}", name="callable_", shared=False
    )
    def callable_(n: int, other: int = 0) -> Any:
        return lock_here()

    @app.task(name="auto_below", autoretry_for=(Passing,), default_retry_delay=0, shared=False)
    @single_instance(key="auto_below:{n}")
    def auto_below(n: int) -> Any:
        return lock_here()

    class ClassBased(LockedTask):
        name = "class_based"
        lock_key = "class_based:{n}"

        def run(self, n: int) -> Any:
            return self.lock.name

    app.register_task(ClassBased())

    class PlainClass(Task):
        name = "plain_class"

        @single_instance(key="plain_class:{n}")
        def run(self, n: int) -> Any:
            return lock_here()

    app.register_task(PlainClass())


@shared_task(name="shared_below")
@single_instance(key="shared_below:{n}")
def shared_below(n: int) -> Any:
    return lock_here()


@shared_task(base=LockedTask, name="shared_locked", lock_key="shared_locked:{n}")
def shared_locked(n: int) -> Any:
    return lock_here()


def _add_outsiders(app: Celery) -> None:
    @app.task(
        base=LockedTask, name="ordered", pydantic=True, lock_key="order:{order[id]}", shared=False
    )
    def ordered(order: Order) -> Any:
        return {"id": order.id, "lock": lock_here()}


def _write_event(url: str) -> Any:
    def write(event: LockEvent) -> None:
        entry = {
            "kind": event.kind,
            "name": event.name,
            "task": event.detail.get("task"),
            "task_id": event.detail.get("task_id"),
            "starts_at": event.at + event.detail.get("pause", 0.0),
            "release": RELEASE,
        }
        client_of(url).rpush(EVENTS, json.dumps(entry))

    return write


if CONF_VARIABLE in os.environ:
    app = make_app(json.loads(os.environ[CONF_VARIABLE]))
    subscribe(_write_event(app.conf.journal_url))
    if port := app.conf.get("metrics_port"):
        metrics.install(app, port=port)

    @signals.task_success.connect
    def _note_success(sender: Any = None, **_: Any) -> None:
        note(app, "success", sender)
