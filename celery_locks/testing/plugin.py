"""The pytest plugin: fixtures, and nothing that happens before a test asks for one.

They have the names of the functions in ``celery_locks.testing``:

``in_memory_locks``   the tasks' locks are in memory, none held; gives the ``Locks``
``locks_disabled``    the tasks run unlocked
``hold_lock``         the function, for the app of ``celery_locks_app``
``assert_skipped``    the function
``lock_name_of``      the function
``celery_locks_app``  whose tasks: ``celery_app`` where a test uses that fixture, else the current
                      app. Override it where neither is yours.
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
    """The app whose locks the other fixtures are about."""
    if "celery_app" in request.fixturenames:
        return request.getfixturevalue("celery_app")
    from celery import current_app

    return current_app._get_current_object()


@pytest.fixture
def in_memory_locks(celery_locks_app: Any) -> Iterator[Locks]:
    """Locks in memory for the tasks that the test runs."""
    from celery_locks.testing import tasks

    with tasks.in_memory_locks(celery_locks_app) as locks:
        yield locks


@pytest.fixture
def locks_disabled() -> Iterator[None]:
    """The tasks that the test runs are not locked."""
    from celery_locks.testing import tasks

    with tasks.locks_disabled():
        yield


@pytest.fixture
def hold_lock(celery_locks_app: Any) -> Callable[..., AbstractContextManager[Lease]]:
    """``with hold_lock("invoice:42"):`` somebody else holds that lock in the block."""
    from celery_locks.testing import tasks

    return partial(tasks.hold_lock, app=celery_locks_app)


@pytest.fixture
def assert_skipped() -> Callable[..., dict[str, Any]]:
    """``assert_skipped(result)`` fails unless the task was skipped because its lock was busy."""
    from celery_locks.testing import tasks

    return tasks.assert_skipped


@pytest.fixture
def lock_name_of() -> Callable[..., str]:
    """``lock_name_of(task, 42)``: the name of the lock that this call takes."""
    from celery_locks.testing import tasks

    return tasks.lock_name_of
