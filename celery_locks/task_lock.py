"""The former name of ``celery_locks.functions``; both are supported."""

from celery_locks.functions import *  # noqa: F403
