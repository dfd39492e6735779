"""A Django project as Celery's guide lays one out; the lock server's URL comes from outside."""

from tests.support.django_project.celery import app

__all__ = ["app"]
