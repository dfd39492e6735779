"""The Django app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from celery_locks.django import celery_app
from celery_locks.django.checks import check_lock_server


class CeleryLocksConfig(AppConfig):  # type: ignore[misc]
    """Remembers the Celery app and registers the checks when Django starts."""

    name = "celery_locks.django"
    label = "celery_locks"
    verbose_name = "Celery locks"

    def ready(self) -> None:
        celery_app.remember_current()
        checks.register(check_lock_server, "celery_locks")
