"""The locks in a browser and over REST: one Starlette app over ``admin``, without rules of its own.

``create_app`` makes it, to be mounted anywhere. ``endpoints.py``: what can be asked, one table.
``fields.py``: what goes into a question. ``openapi.py``: the same table, described.
``credentials.py``: who may ask. ``limits.py``: how often, and how much. ``snapshot.py``: the one
list that all share. ``replies.py``: answers, and the headers on all of them. ``pages.py``: the page
and its files.
"""

from celery_locks.web.build import create_app

__all__ = ["create_app"]
