"""Locks in Django: a page in the admin, and ``manage.py celery_locks``.

Add ``"celery_locks.django"`` to INSTALLED_APPS. There is no table and no migration; the
permissions ``celery_locks.view_lock`` and ``celery_locks.release_lock`` come with ``migrate``.

``celery_app.py``: which Celery app. ``checks.py``: what ``manage.py check`` says. ``admin.py``: who
may see and do what, and where. ``listing.py`` and ``detail.py``: a page's values as text.
``acts.py``: releasing and stopping.
"""

from importlib import import_module

from celery_locks.extras import missing_extra

try:
    import_module("django")
except ImportError as error:
    raise missing_extra("django", error) from error
