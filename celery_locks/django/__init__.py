"""Locks in Django: pages in the admin, ``manage.py celery_locks``, and ``hold`` in transactions.

Add ``"celery_locks.django"`` to INSTALLED_APPS. There is no table and no migration; ``migrate``
creates the permissions ``celery_locks.view_lock`` and ``celery_locks.release_lock``.

``admin.py`` has the views and their permissions, ``listing.py`` and ``detail.py`` prepare what the
templates show, ``actions.py`` releases and stops. ``celery_app.py`` finds the Celery app and
``checks.py`` checks its settings for ``manage.py check``. ``transactions.py`` has ``hold``, a lock
that is released after the commit or rollback.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_locks.extras import missing_extra

try:
    import_module("django")
except ImportError as error:
    raise missing_extra("django", error) from error

if TYPE_CHECKING:
    from celery_locks.django.transactions import hold


def __getattr__(name: str) -> Any:
    """Import ``hold`` on first use: Django imports this package before its settings are ready."""
    if name != "hold":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from celery_locks.django.transactions import hold

    return hold


__all__ = ["hold"]
