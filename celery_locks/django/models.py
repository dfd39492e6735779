"""A model without a table: it gives the locks their place in the admin, and their permissions.

The app has no migrations folder. Django then makes no migration for it, and an unmanaged model gets
no table either; content type and permissions are made after any ``migrate``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from celery_locks.text import printable


class NoRows(models.Manager):  # type: ignore[misc]
    """What asks every model for its rows, as ``dumpdata`` does, finds none here."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lock(models.Model):  # type: ignore[misc]
    name = models.CharField(primary_key=True, max_length=512)
    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions: ClassVar = [("release_lock", "Can release a lock")]

    def __str__(self) -> str:
        return printable(self.name)
