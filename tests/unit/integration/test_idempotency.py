"""Results that `once` keeps lie on the lock server: whoever writes there must not run code here."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_locks.integration.idempotency import once_of
from celery_locks.options import LockOptions


def once_with(**conf: Any) -> Any:
    app = Celery("once", broker="memory://", set_as_current=False)
    app.conf.update(conf)

    @app.task(name="pay", shared=False)
    def task() -> None: ...

    return once_of(task, LockOptions(key="pay", once=60.0), "pay:1")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


ANYTHING = ["json", "pickle", "yaml"]


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"accept_content": ANYTHING},
        {"accept_content": ANYTHING, "result_accept_content": ANYTHING},
        {"result_serializer": "pickle", "accept_content": ANYTHING},
        {"result_serializer": "application/x-python-serialize", "accept_content": ANYTHING},
    ],
    ids=str,
)
def test_a_pickled_result_is_never_loaded(
    conf: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The work counts as done, without a result."""
    made = tmp_path / "made"
    payload = base64.b64encode(pickle.dumps(Evil(made))).decode()
    mark = f"rtoken application/x-python-serialize binary b {payload}"
    repeat = once_with(**conf).repeat(mark)
    assert (repeat.has_result, repeat.reason) == (False, "already_done")
    assert not made.exists()
    assert "the kept result of 'pay:1' cannot be read" in caplog.text


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_a_result_is_kept_with_any_serializer(serializer: str) -> None:
    """Where results are pickled, those kept here are JSON."""
    once = once_with(result_serializer=serializer, accept_content=[serializer])
    kept = once.completed_mark("token", {"paid": [1, "é"]})
    assert "python-serialize" not in kept.value
    assert once.repeat(kept.value).result == {"paid": [1, "é"]}


def test_a_result_of_another_serializer_is_not_read() -> None:
    """Only what this app writes itself: nobody else writes these marks."""
    kept = once_with(result_serializer="yaml").completed_mark("token", 1)
    assert (
        not once_with(result_serializer="json", accept_content=ANYTHING)
        .repeat(kept.value)
        .has_result
    )
