"""However a task is written, the same call has the same lock name, and is locked when published."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, _state, shared_task
from pydantic import BaseModel

from celery_locks import LockedTask, single_instance
from celery_locks.integration.current_execution import current_lease
from celery_locks.testing import in_memory_locks, lock_name_of

KEY = "invoice:{invoice_id}"
PLACEMENTS = ("below", "below on LockedTask", "above", "lock_ attributes")


numbers = itertools.count(1)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app of its own: ``shared_task`` sees no other, and what it adds ends with the test."""
    monkeypatch.setattr(_state, "_apps", weakref.WeakSet())
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    app = Celery("placed", broker="memory://", backend="cache+memory://")
    with in_memory_locks(app):
        yield app
    app.close()


def held() -> str | None:
    lease = current_lease()
    return lease.name if lease else None


def bound(self: Any, tenant: str, invoice_id: int, dry_run: bool = False) -> str | None:
    return held()


def free(tenant: str, invoice_id: int, dry_run: bool = False) -> str | None:
    return held()


def options_of(placement: str, key: str | None) -> dict[str, Any]:
    if placement == "lock_ attributes":
        # Without a key the lock would be by the task's id: "*" is what the decorator says then.
        return {"base": LockedTask, "lock_key": key or "*"}
    return {"base": LockedTask} if placement == "below on LockedTask" else {}


def mark(target: Any, key: str | None) -> Any:
    return single_instance(key=key)(target) if key else single_instance(target)


def by_decorator(
    app: Celery, decorator: Any, placement: str, bind: bool, key: str | None, **options: Any
) -> Any:
    function = bound if bind else free
    if placement.startswith("below"):
        function = mark(function, key)
    task = decorator(name="bill", bind=bind, **options_of(placement, key), **options)(function)
    if placement == "above":
        mark(task, key)
    return app.tasks["bill"]


def by_class(app: Celery, placement: str, key: str | None, **options: Any) -> Any:
    run = mark(bound, key) if placement.startswith("below") else bound
    words = options_of(placement, key)
    base = words.pop("base", Task)
    task = app.register_task(
        type("Bill", (base,), {"run": run, "name": "bill", **words, **options})()
    )
    if placement == "above":
        mark(task, key)
    return task


def cases() -> Iterator[Any]:
    whens, binds, retries = (False, True), (False, True), (False, True)
    for placement, finalised, retry in itertools.product(PLACEMENTS, whens, retries):
        for bind in binds:
            yield "app.task", placement, finalised, bind, retry
            yield "pydantic", placement, finalised, bind, retry
            if placement != "above":  # refused there
                yield "shared_task", placement, finalised, bind, retry
        yield "class", placement, finalised, True, retry


def made(app: Celery, kind: str, placement: str, bind: bool, retry: bool, key: str | None) -> Any:
    options: dict[str, Any] = {"autoretry_for": (ZeroDivisionError,)} if retry else {}
    if kind == "class":
        return by_class(app, placement, key, **options)
    if kind == "shared_task":
        return by_decorator(app, shared_task, placement, bind, key, **options)
    options |= {"pydantic": True} if kind == "pydantic" else {}
    return by_decorator(app, app.task, placement, bind, key, shared=False, **options)


@pytest.mark.parametrize("key", [KEY, None], ids=["template", "arguments"])
@pytest.mark.parametrize(("kind", "placement", "finalised", "bind", "retry"), list(cases()))
def test_a_call_has_one_name_however_the_task_is_written(
    app: Celery,
    kind: str,
    placement: str,
    finalised: bool,
    bind: bool,
    retry: bool,
    key: str | None,
) -> None:
    """Celery's wrappers once made ``self`` the first argument, and 42 ran twice at a time."""
    if finalised:
        app.finalize()
    task = made(app, kind, placement, bind, retry, key)
    name = "invoice:42" if key else 'bill(tenant="acme",invoice_id=42,dry_run=false)'
    assert task("acme", 42) == name
    assert task("acme", invoice_id=42, dry_run=False) == name
    assert task.apply(("acme",), {"invoice_id": 42}).get() == name
    assert lock_name_of(task, "acme", 42, False) == name


@pytest.mark.parametrize(("kind", "placement", "finalised", "bind", "retry"), list(cases()))
def test_a_task_is_locked_from_its_first_publish_on(
    app: Celery, kind: str, placement: str, finalised: bool, bind: bool, retry: bool
) -> None:
    """A view that imports its tasks late publishes them like everybody else."""
    if finalised:
        app.finalize()
    task = made(app, kind, placement, bind, retry, KEY)
    assert isinstance(task, LockedTask)
    call = ("acme", next(numbers))
    first = task.apply_async(call, lock={"scope": "queued+running"})
    second = task.apply_async(call, lock={"scope": "queued+running"})
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert task.pending(*call) == "queued"


class Order(BaseModel):
    number: int
    note: str | None = None


@pytest.mark.skipif(
    not hasattr(Task, "_dump_pydantic_arguments"),
    reason="Celery publishes models from 5.7 on; before, one publishes model_dump().",
)
@pytest.mark.parametrize("template", ["order:{order.number}", "order:{order[number]}"])
def test_a_pydantic_argument_has_one_name_on_both_ends(app: Celery, template: str) -> None:
    """The publisher has a model, the worker a dict: the lock at publish is the lock of the run."""

    @app.task(name="order", pydantic=True, shared=False)
    @single_instance(key=template)
    def ship(order: Order) -> str | None:
        return held()

    as_sent = {"number": 7, "note": None}
    assert lock_name_of(ship, Order(number=7)) == lock_name_of(ship, as_sent) == "order:7"
    assert ship.apply((as_sent,)).get() == "order:7"
