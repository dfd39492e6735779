"""Mark the results of parked messages that nobody runs any more.

An operator removed them, or a newer message took their place (``keep_latest``).

As Celery does for a revoked task: the result is REVOKED, and a chord that waits for it fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery.app.task import Context
from celery.backends.base import DisabledBackend
from kombu.utils import json

from celery_locks.integration.message_text import decode_body, headers_of
from celery_locks.printable_text import printable

logger = logging.getLogger("celery_locks")


def mark_purged(app: Any, messages: Sequence[str], reason: str) -> str:
    """Mark the results of recorded messages (``message_text.py``); return why some are not, or "".

    It ends at the first error of the result backend, which may take long to fail.
    """
    for done, text in enumerate(messages):
        try:
            mark_revoked(app, text, reason)
        except Exception as error:  # noqa: BLE001 (each result backend has errors of its own)
            left = len(messages) - done
            results = "the result of 1 task" if left == 1 else f"the results of {left} tasks"
            return f"{results} could not be marked as revoked: {printable(str(error))}"
    return ""


def mark_revoked(app: Any, text: str, reason: str) -> None:
    """Mark the result of a recorded message."""
    message = json.loads(text)
    headers = headers_of(app, message)
    task = app.tasks.get(headers.get("task"))
    backend = task.backend if task is not None else app.backend
    request = Context(headers, **_awaited(app, message))
    ignores = headers.get("ignore_result") or getattr(task, "ignore_result", False)
    stores_errors = getattr(task, "store_errors_even_if_ignored", False)
    if not isinstance(backend, DisabledBackend):
        backend.mark_as_revoked(
            headers["id"], reason, request=request, store_result=not ignores or stores_errors
        )


def _awaited(app: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Return who waits for the result: the caller, and the chord that the body names."""
    fields = {name: message.get(name) for name in ("reply_to", "correlation_id")}
    try:
        body = decode_body(app, message)
        embedded = body if isinstance(body, dict) else body[2]  # a dict in protocol 1
        return {**fields, "chord": embedded.get("chord")}
    except Exception as error:  # noqa: BLE001 (whatever a serializer may raise)
        logger.warning(
            "task %s does not run, and its message cannot be read: if it is in a chord, the chord "
            "is not told: %s",
            printable(str(message["headers"].get("id"))),
            printable(str(error)),
        )
        return fields
