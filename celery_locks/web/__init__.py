"""The locks in a browser and over REST: one Starlette app over ``admin``, without rules of its own.

``create_app`` makes it, to be mounted anywhere. ``endpoints.py``: what can be asked, one table.
``fields.py``: what goes into a question. ``openapi.py``: the same table, described.
``answers.py``: who answers. ``credentials.py``: who may ask. ``limits.py``: how often, how much.
``guard.py``: around all of it. ``snapshot.py``: the one list that all share. ``replies.py``: JSON
and refusals. ``pages.py``: the page and its files. ``build.py`` puts it together.
"""

from celery_locks.extras import missing_extra

try:
    from celery_locks.web.app import create_app
except ImportError as error:
    raise missing_extra("web", error) from error

__all__ = ["create_app"]
