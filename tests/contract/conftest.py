"""`place`: each store in turn. `face`: each store with each face. `two`: two faces on one store."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.core import waiting
from celery_locks.core.renewer import renewer
from tests.contract.faces import LeaseBackend
from tests.contract.places import PLACES, Place, make_place


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = make_place(request.param, request.getfixturevalue)
    yield made
    made.close()


@pytest.fixture
def locks(place: Place) -> Iterator[Locks]:
    """What it leaves held is no longer renewed: the next test starts with an idle keeper."""
    before = renewer.tokens
    yield place.locks()
    for token in renewer.tokens - before:
        renewer.discard(token)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def face(place: Place, kind: str) -> Iterator[LeaseBackend]:
    before = renewer.tokens
    yield place.face(kind)
    for token in renewer.tokens - before:
        renewer.discard(token)


@pytest.fixture
def other(place: Place, kind: str) -> LeaseBackend:
    """A second process, as far as the store can tell."""
    return place.face(kind)


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Any]]:
    """`in_thread(f, …)` runs it beside the test; `.result()` of what it returns waits for it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


@pytest.fixture
def without_repoll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not woken now waits for half a minute: longer than any test here."""
    monkeypatch.setattr(waiting, "REPOLL", 30.0)
    monkeypatch.setattr(waiting, "ALIVE", 90.0)
