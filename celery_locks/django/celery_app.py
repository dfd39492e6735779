"""The Celery app of the pages and commands: ``CELERY_LOCKS_APP``, or the current app.

Celery keeps the current app per thread, and requests run in threads where it was never set. So it
is remembered when Django starts, in the thread that imported the project.
"""

from __future__ import annotations

from typing import Any

import celery
from celery.app.utils import find_app
from django.conf import settings

from celery_locks.admin.connect import Locks, locks_of
from celery_locks.errors import LockUsageError

SETTING = "CELERY_LOCKS_APP"
_HINT = "Write it as 'proj.celery:app'"

_current: Any = None


def remember_current() -> None:
    global _current
    _current = celery.current_app._get_current_object()


def get_app() -> Any:
    """Return the app with its tasks bound; raise ``LockUsageError`` if the setting is wrong."""
    value = getattr(settings, SETTING, None)
    app = _import_app(value) if value else _current or celery.current_app._get_current_object()
    app.finalize()
    return app


def get_locks() -> Locks:
    """Return the locks of the app's tasks, the same object for the whole process."""
    return locks_of(get_app())


def _import_app(value: Any) -> Any:
    found = value
    if isinstance(value, str):
        try:
            found = find_app(value)
        # Importing runs the project's own code, which may raise anything.
        except Exception as error:
            why = f"cannot be imported: {type(error).__name__}: {error}"
            raise LockUsageError(f"{SETTING} is {value!r}, which {why}. {_HINT}") from error
    if not isinstance(found, celery.Celery):
        raise LockUsageError(f"{SETTING} is {value!r}, which is not a Celery app. {_HINT}")
    return found
