"""Every command works on a store in memory, whatever its URL."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from celery_locks import Locks
from celery_locks.cli import context


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    monkeypatch.setattr(context.Context, "of_url", lambda *_: context.Context(made))
    yield made
    made.close()
