"""The pytest plugin: fixtures, and nothing that happens before a test asks for one.

``celery_locks_memory``    the tasks' locks are in memory, none held; gives the ``Locks``
``celery_locks_disabled``  the tasks run unlocked
``celery_locks_app``       whose tasks: ``celery_app`` where a test uses that fixture, else the
                           current app. Override it where neither is yours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_locks.locks import Locks


@pytest.fixture
def celery_locks_app(request: pytest.FixtureRequest) -> Any:
    """The app whose locks the other fixtures are about."""
    if "celery_app" in request.fixturenames:
        return request.getfixturevalue("celery_app")
    from celery import current_app

    return current_app._get_current_object()


@pytest.fixture
def celery_locks_memory(celery_locks_app: Any) -> Iterator[Locks]:
    """Locks in memory for the tasks that the test runs."""
    from celery_locks.testing.tasks import in_memory_locks

    with in_memory_locks(celery_locks_app) as locks:
        yield locks


@pytest.fixture
def celery_locks_disabled() -> Iterator[None]:
    """The tasks that the test runs are not locked."""
    from celery_locks.testing.tasks import locks_disabled

    with locks_disabled():
        yield
