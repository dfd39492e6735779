"""A Celery app whose locks are on a scripted store, without threads and without time."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_locks import settings
from celery_locks.integration.app import AppLocks, replace_locks
from tests.support.scripted_store import ScriptedStore
from tests.support.still_renewer import StillRenewer


@pytest.fixture
def scripted_locks(scripted_store: ScriptedStore, still_renewer: StillRenewer) -> AppLocks:
    """The locks of an app, on the scripted store."""
    locks = AppLocks.__new__(AppLocks)
    locks._setup(scripted_store, {"prefix": "p"})  # type: ignore[arg-type]
    locks.settings = settings.of(SimpleNamespace(conf={"locks_url": "redis://scripted"}))
    return locks


@pytest.fixture
def scripted_app(scripted_locks: AppLocks) -> Iterator[Celery]:
    """An app with these locks."""
    app = Celery("scripted", broker="memory://", set_as_current=False)
    replace_locks(app, scripted_locks)
    yield app
    app.close()
