"""Which Celery app the pages and commands speak of: ``CELERY_LOCKS_APP``, or the current one.

Celery keeps the current app per thread, and requests come in threads that never saw it set. So it
is remembered when Django starts, in the thread that imported the project.
"""

from __future__ import annotations

from typing import Any

import celery
from celery.app.utils import find_app
from django.conf import settings

from celery_locks.core.locks import Locks
from celery_locks.errors import LockUsageError
from celery_locks.integration.app import locks_of

SETTING = "CELERY_LOCKS_APP"
_WRITE = "Write it as 'proj.celery:app'"

_current: Any = None


def remember_current() -> None:
    global _current
    _current = celery.current_app._get_current_object()


def the_app() -> Any:
    """The app, with its tasks bound; ``LockUsageError`` if the setting names none."""
    said = getattr(settings, SETTING, None)
    app = _imported(said) if said else _current or celery.current_app._get_current_object()
    app.finalize()
    return app


def the_locks() -> Locks:
    """Those of the app's tasks; one object for the whole process."""
    return locks_of(the_app())


def _imported(said: Any) -> Any:
    found = said
    if isinstance(said, str):
        try:
            found = find_app(said)
        except (
            Exception
        ) as error:  # importing runs the project's own code, which may raise anything
            why = f"cannot be imported: {type(error).__name__}: {error}"
            raise LockUsageError(f"{SETTING} is {said!r}, which {why}. {_WRITE}") from error
    if not isinstance(found, celery.Celery):
        raise LockUsageError(f"{SETTING} is {said!r}, which is no Celery app. {_WRITE}")
    return found
