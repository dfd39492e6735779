"""A model without a table: it adds the locks to the admin and defines their permissions.

The app has no migrations folder, so Django creates no migration for it, and an unmanaged model gets
no table. Django creates the content type and the permissions after any ``migrate``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from celery_locks.printable_text import printable


class NoRows(models.Manager):  # type: ignore[misc]
    """Returns no rows to code that queries every model, such as ``dumpdata``."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lock(models.Model):  # type: ignore[misc]
    """A lock, by its name."""

    name = models.CharField(primary_key=True, max_length=512)
    objects = NoRows()

    class Meta:
        """No table; permissions to view and to release."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions: ClassVar = [("release_lock", "Can release a lock")]

    def __str__(self) -> str:
        return printable(self.name)
