"""The page and the REST API: one Starlette app over ``admin``, which holds all the rules.

``create_app`` in ``app.py`` builds it; mount it anywhere. ``endpoints.py`` is the table of REST
endpoints, ``handlers.py`` answers them, ``params.py`` parses their input, ``openapi.py`` describes
them. ``auth.py`` decides who may call, ``middleware.py`` limits and protects every request.
``snapshot.py`` and ``cache.py`` share what is slow to read among all viewers.
"""

from celery_locks.extras import missing_extra

try:
    from celery_locks.web.app import create_app
except ImportError as error:
    raise missing_extra("web", error) from error

__all__ = ["create_app"]
