"""The import path of SingleBeat: ``beat_scheduler = "celery_locks.beat:SingleBeat"``."""

from celery_locks.integration.beat import SingleBeat

__all__ = ["SingleBeat"]
