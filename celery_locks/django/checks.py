"""What ``manage.py check`` says of the set-up; no server is asked, so it need not be there."""

from __future__ import annotations

from typing import Any

from django.core import checks

from celery_locks.core.locks import Locks
from celery_locks.django.celery_app import SETTING, the_app
from celery_locks.errors import LockError


def check_lock_server(app_configs: Any = None, **_: Any) -> list[Any]:
    try:
        app = the_app()
    except LockError as error:
        return [checks.Error(f"{error}.", id="celery_locks.E001")]
    try:
        Locks.from_app(app).close()
    except (LockError, TypeError, ValueError) as error:
        hint = f"This is about Celery app {app.main!r}. If it is not yours, set {SETTING}."
        return [checks.Warning(f"There is no lock server: {error}.", hint, id="celery_locks.W001")]
    return []
