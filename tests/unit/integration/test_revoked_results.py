"""The result of a purged message is that of a revoked task, as its message says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError

from celery_locks.integration.message_text import record_message
from celery_locks.integration.revoked_results import mark_purged


@pytest.fixture
def app() -> Celery:
    made = Celery("t", broker="memory://", backend="cache+memory://", set_as_current=False)

    @made.task(name="bill", shared=False)
    def bill(n: int) -> None: ...

    @made.task(name="quiet", ignore_result=True, shared=False)
    def quiet(n: int) -> None: ...

    return made


def recorded(app: Celery, name: str, task_id: str, **options: Any) -> str:
    task = app.tasks[name]

    def send(producer: Any) -> Any:
        return task.apply_async((1,), task_id=task_id, producer=producer, **options)

    return record_message(app, send)[0]


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"serializer": "yaml"}])
def test_result_is_revoked_with_the_reason(app: Celery, options: Any) -> None:
    app.conf.accept_content = ["json", "yaml"]
    assert mark_purged(app, [recorded(app, "bill", "one-2", **options)], "purged by ann: old") == ""
    result = app.AsyncResult("one-2")
    assert result.state == "REVOKED"
    assert isinstance(result.result, TaskRevokedError)
    assert "purged by ann: old" in str(result.result)


def test_result_that_is_ignored_is_not_stored(app: Celery) -> None:
    assert mark_purged(app, [recorded(app, "quiet", "one-3")], "why") == ""
    assert app.AsyncResult("one-3").state == "PENDING"


def test_task_that_the_app_does_not_know_is_marked_too(app: Celery) -> None:
    message = recorded(app, "bill", "one-4").replace('"task": "bill"', '"task": "elsewhere"')
    assert mark_purged(app, [message], "why") == ""
    assert app.AsyncResult("one-4").state == "REVOKED"


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_chord_of_a_purged_task_learns_of_it(
    app: Celery, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    """Otherwise its body would wait for ever for a part that never comes."""
    told: list[Any] = []

    def on_part(request: Any, state: str, result: Any, **_: Any) -> None:
        told.append((request.id, request.group, request.chord["task"], state))

    monkeypatch.setattr(app.backend, "on_chord_part_return", on_part)
    body = app.tasks["bill"].s().set(task_id="body")
    message = recorded(app, "bill", "one", chord=body, group_id="group", compression=compression)
    assert mark_purged(app, [message], "why") == ""
    assert told == [("one", "group", "bill", "REVOKED")]


def test_body_that_cannot_be_read_does_not_prevent_the_mark(app: Celery) -> None:
    message = recorded(app, "bill", "one-7", serializer="yaml")
    app.conf.accept_content = ["json"]
    assert mark_purged(app, [message], "why") == ""
    assert app.AsyncResult("one-7").state == "REVOKED"


def test_backend_that_fails_is_asked_once(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take seconds to fail; a thousand messages must not take an hour."""
    calls: list[str] = []

    def fail(task_id: str, *_: Any, **__: Any) -> None:
        calls.append(task_id)
        raise OSError("no\nbackend")

    messages = [recorded(app, "bill", task_id) for task_id in ("one", "two")]
    for task in app.tasks.values():
        monkeypatch.setattr(type(task), "backend", SimpleNamespace(mark_as_revoked=fail))
    sentence = mark_purged(app, messages, "why")
    assert sentence == r"the results of 2 tasks could not be marked as revoked: no\nbackend"
    assert calls == ["one"]
