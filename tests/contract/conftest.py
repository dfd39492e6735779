"""`backend`: each store in turn. `api`: each store with each API. `other`: a second API on it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.core import waiting
from celery_locks.core.renewer import renewer
from tests.contract.apis import LocksApi
from tests.contract.backends import BACKENDS, Backend, make_backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = make_backend(request.param, request.getfixturevalue)
    yield made
    made.close()


@pytest.fixture
def locks(backend: Backend) -> Iterator[Locks]:
    """Stop renewing what a test leaves held: the next test starts with an idle renewer."""
    before = renewer.tokens
    yield backend.locks()
    for token in renewer.tokens - before:
        renewer.discard(token)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(backend: Backend, kind: str) -> Iterator[LocksApi]:
    before = renewer.tokens
    yield backend.api(kind)
    for token in renewer.tokens - before:
        renewer.discard(token)


@pytest.fixture
def other(backend: Backend, kind: str) -> LocksApi:
    """Return a second API; for the store it is another process."""
    return backend.api(kind)


@pytest.fixture
def knowing(api: LocksApi, other: LocksApi) -> LocksApi:
    """Return a second process that has used the server before it loses its data."""
    other.release(other.acquire("a"))
    return other


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Any]]:
    """Run a function in a thread, `in_thread(f, …)`, and wait for it with `.result()`."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


@pytest.fixture
def without_repoll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a waiter that is not woken wait for half a minute: longer than any test here."""
    monkeypatch.setattr(waiting, "REPOLL", 30.0)
    monkeypatch.setattr(waiting, "ALIVE", 90.0)
