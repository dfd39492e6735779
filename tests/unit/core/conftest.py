"""The operations over a scripted store, without threads and without time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import events
from celery_locks.core.lease import Lease
from celery_locks.core.operations import Operations
from celery_locks.core.owners import current_owner
from celery_locks.store.commands.locks import LockCommands
from tests.support.scripted_store import AnsweringStore, ScriptedStore
from tests.support.still_renewer import StillRenewer


@pytest.fixture
def operations(
    scripted_store: ScriptedStore, still_renewer: StillRenewer
) -> Iterator[Operations[Lease]]:
    backend: Any = object()
    yield Operations(backend, Lease, scripted_store, LockCommands("p"), scripted_store.unsubscribe)
    current_owner().leases.clear()


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[events.LockEvent]:
    seen: list[events.LockEvent] = []
    monkeypatch.setattr(events, "_subscribers", (seen.append,))
    return seen


@pytest.fixture
def answering_store() -> AnsweringStore:
    return AnsweringStore()
