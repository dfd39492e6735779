"""The operations over a scripted store, without threads and without time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import events
from celery_locks.core.lease import Lease
from celery_locks.core.operations import Operations
from celery_locks.core.owners import current_owner
from celery_locks.store.effects import run_async
from tests.support.acquiring import Run, ask
from tests.support.scripted_store import AnsweringStore, ScriptedStore
from tests.support.sent_calls import OneCallCommands
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def operations(
    scripted_store: ScriptedStore, still_renewer: StillRenewer
) -> Iterator[Operations[Lease]]:
    backend: Any = object()
    yield Operations(backend, Lease, scripted_store, OneCallCommands("p"))
    current_owner().leases.clear()


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[events.LockEvent]:
    seen: list[events.LockEvent] = []
    monkeypatch.setattr(events, "_subscribers", (seen.append,))
    return seen


@pytest.fixture
def answering_store() -> AnsweringStore:
    return AnsweringStore()


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, scripted_store: ScriptedStore) -> Run:
    """``run(operation)``, as ``Locks`` or ``AsyncLocks`` run it."""

    async def perform(effect: Any) -> Any:
        return scripted_store.perform(effect)

    def run_awaited(operation: Any) -> Any:
        return asyncio.run(run_async(operation, perform))

    def run_blocking(operation: Any) -> Any:
        return scripted_store.run(operation)

    return run_blocking if request.param == "sync" else run_awaited


@pytest.fixture
def acquire(
    operations: Operations[Lease], scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> Callable[..., Lease]:
    """``acquire()`` returns a lease that was granted a moment ago, with fence 7."""

    def make(**fields: Any) -> Lease:
        scripted_store.expect(("acquire", 7))
        lease = scripted_store.run(operations.acquire(ask(virtual_clock, **fields)))
        assert isinstance(lease, Lease)
        return lease

    return make
