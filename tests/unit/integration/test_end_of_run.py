"""When a run need not wait for the release of its lock."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from celery_locks import LockedTask
from celery_locks.integration import end_of_run
from celery_locks.integration.end_of_run import ends_unnoticed


def make_run(backend: str | None = "cache+memory://", **fields: Any) -> Any:
    """Return a run as the worker makes it, without result and successors, but for the fields."""
    app = Celery("ends", broker="memory://", backend=backend, set_as_current=False)
    handlers = {name: fields.pop(name) for name in ("on_success", "after_return") if name in fields}

    @app.task(base=LockedTask, shared=False, **handlers)
    def job() -> None: ...

    request = Context(ignore_result=True, called_directly=False)
    run = SimpleNamespace(
        task=app.tasks[job.name],
        request=request,
        outer=None,
        once=None,
        join=None,
        options=SimpleNamespace(parks=False),
    )
    for name, value in fields.items():
        setattr(run if hasattr(run, name) else request, name, value)
    return run


def test_run_without_result_and_successors_ends_unnoticed() -> None:
    """Most tasks without results are like this, and they need not wait."""
    assert ends_unnoticed(make_run())


def test_run_without_backend_ends_unnoticed() -> None:
    """Whatever its message says, no result can be stored."""
    assert ends_unnoticed(make_run(backend=None, ignore_result=False))


@pytest.mark.parametrize(
    "fields",
    [
        {"ignore_result": False},
        {"callbacks": [{"task": "next"}]},
        {"chain": [{"task": "next"}]},
        {"chord": {"task": "body"}},
        {"called_directly": True},
        {"is_eager": True},
        {"outer": object()},
        {"once": object()},
        {"join": object()},
        {"options": SimpleNamespace(parks=True)},
        {"on_success": lambda self, *_: None},
        {"after_return": lambda self, *_: None},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_run_whose_end_is_noticed_waits(fields: dict[str, Any]) -> None:
    """Whoever notices the end may try the lock at once, and must find it free."""
    assert not ends_unnoticed(make_run(**fields))


def test_greenlet_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background thread could not read from its connection."""
    monkeypatch.setattr(end_of_run, "is_green", lambda: True)
    assert not ends_unnoticed(make_run())
