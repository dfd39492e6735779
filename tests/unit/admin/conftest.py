"""A store in memory, workers that answer what the test says, and a clock that it moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import time_machine

from celery_locks import Locks
from celery_locks.admin import liveness, stale_locks
from celery_locks.integration.worker_inspection import ActiveReport


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


@pytest.fixture
def worker_reports(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`worker_reports(first, second, …)`: what Celery answers, the last one from then on."""

    def answer(*reports: ActiveReport) -> list[Any]:
        asked: list[Any] = []

        def call(app: Any, workers: Any = None, timeout: float = 0, **_: Any) -> ActiveReport:
            asked.append(workers)
            return reports[min(len(asked), len(reports)) - 1]

        monkeypatch.setattr(stale_locks, "inspect_active", call)
        monkeypatch.setattr(liveness, "inspect_active", call)
        return asked

    return answer


@pytest.fixture
def clock() -> Iterator[Any]:
    with time_machine.travel(1_800_000_000, tick=False) as moved:
        yield moved
