"""Locks in Django: pages in the admin, and ``manage.py celery_locks``.

Add ``"celery_locks.django"`` to INSTALLED_APPS. There is no table and no migration; ``migrate``
creates the permissions ``celery_locks.view_lock`` and ``celery_locks.release_lock``.

``admin.py`` has the views and their permissions, ``listing.py`` and ``detail.py`` prepare what the
templates show, ``actions.py`` releases and stops. ``celery_app.py`` finds the Celery app and
``checks.py`` checks its settings for ``manage.py check``.
"""

from importlib import import_module

from celery_locks.extras import missing_extra

try:
    import_module("django")
except ImportError as error:
    raise missing_extra("django", error) from error
