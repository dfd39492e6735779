"""Real workers: parked tasks come by the priority of their messages, as the broker counts it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import Rig, rig_on
from tests.support.parking_rig import assert_ran_in_order, park
from tests.support.rabbitmq import RabbitMQ

_numbers = itertools.count()

PRIORITIES = [None, 3, 9, 3]


@pytest.fixture
def key() -> str:
    return f"priority-{next(_numbers)}"


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, list[int]]]:
    """Return a rig with a worker, and the order in which its broker delivers ``PRIORITIES``."""
    conf: dict[str, Any] = {"locks_ttl": 30}
    order = [0, 1, 3, 2]
    if request.param == "rabbitmq":
        broker: RabbitMQ = request.getfixturevalue("rabbitmq")
        conf |= {"broker_url": broker.url, "task_default_queue": "priority"}
        order = [2, 1, 3, 0]
    with EmbeddedServer() as server, rig_on(server, **conf) as rig, rig.worker(concurrency=2):
        yield rig, order


@pytest.mark.parametrize("scope", ["running", "queued+running"])
def test_parked_tasks_come_by_priority(place: tuple[Rig, list[int]], key: str, scope: str) -> None:
    """Parked by a worker and parked at publish, the number means what it means to the broker."""
    rig, order = place
    lock = {"by_priority": True, "scope": scope}
    with rig.locks.hold(key):
        results = [park(rig, key, lock=lock, priority=it)[0] for it in PRIORITIES]
    assert_ran_in_order(rig, key, [results[number] for number in order])


def test_priority_counts_only_if_the_task_asks_for_it(
    place: tuple[Rig, list[int]], key: str
) -> None:
    """It is there for the broker: alone it must not change an order that is promised."""
    rig, _ = place
    with rig.locks.hold(key):
        results = [park(rig, key, priority=it)[0] for it in PRIORITIES]
    assert_ran_in_order(rig, key, results)
