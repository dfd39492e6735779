"""The checks of ``manage.py check``: settings only, so no server has to run."""

from __future__ import annotations

from typing import Any

from django.core import checks

from celery_locks.admin.connect import check_settings
from celery_locks.django.celery_app import SETTING, get_app
from celery_locks.errors import LockError


def check_lock_server(app_configs: Any = None, **_: Any) -> list[Any]:
    try:
        app = get_app()
    except LockError as error:
        return [checks.Error(f"{error}.", id="celery_locks.E001")]
    try:
        check_settings(app)
    except (LockError, TypeError, ValueError) as error:
        hint = f"The Celery app is {app.main!r}. If this is the wrong app, set {SETTING}."
        return [
            checks.Warning(f"No lock server is configured: {error}.", hint, id="celery_locks.W001")
        ]
    return []
