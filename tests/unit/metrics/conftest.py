"""Metrics of a store in memory; no subscriber outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from celery_locks import Locks, events, metrics


@pytest.fixture(autouse=True)
def nobody_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(events, "_subscribers", ())
    yield
    metrics.uninstall()


@pytest.fixture
def locks() -> Locks:
    return Locks(fakeredis.FakeRedis())
