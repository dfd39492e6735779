"""The pytest plugin: fixtures only; nothing happens before a test uses one.

They have the names of the functions in ``celery_locks.testing``:

``in_memory_locks``   keeps the tasks' locks in memory, none held; returns the ``Locks``
``locks_disabled``    runs the tasks without locks
``hold_lock``         the function, for the app of ``celery_locks_app``
``assert_skipped``    the function
``lock_name_of``      the function
``celery_locks_app``  the app: ``celery_app`` if a test uses that fixture, else the current app.
                      Override it if neither is yours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from celery_locks.core.lease import Lease
    from celery_locks.core.locks import Locks


@pytest.fixture
def celery_locks_app(request: pytest.FixtureRequest) -> Any:
    """Return the app whose locks the other fixtures use."""
    if "celery_app" in request.fixturenames:
        return request.getfixturevalue("celery_app")
    from celery import current_app

    return current_app._get_current_object()


@pytest.fixture
def in_memory_locks(celery_locks_app: Any) -> Iterator[Locks]:
    """Keep the locks of the tasks that the test runs in memory."""
    from celery_locks.testing import in_memory

    with in_memory.in_memory_locks(celery_locks_app) as locks:
        yield locks


@pytest.fixture
def locks_disabled() -> Iterator[None]:
    """Run the tasks of the test without locks."""
    from celery_locks.testing import in_memory

    with in_memory.locks_disabled():
        yield


@pytest.fixture
def hold_lock(celery_locks_app: Any) -> Callable[..., AbstractContextManager[Lease]]:
    """Return the function; somebody else holds the lock while its block runs."""
    from celery_locks.testing import in_memory

    return partial(in_memory.hold_lock, app=celery_locks_app)


@pytest.fixture
def assert_skipped() -> Callable[..., dict[str, Any]]:
    """Return the function; it fails unless the task was skipped because its lock was busy."""
    from celery_locks.testing import in_memory

    return in_memory.assert_skipped


@pytest.fixture
def lock_name_of() -> Callable[..., str]:
    """Return the function: ``lock_name_of(task, 42)`` is the lock name of this call."""
    from celery_locks.testing import in_memory

    return in_memory.lock_name_of
