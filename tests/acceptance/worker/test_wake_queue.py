"""Real workers: a woken message goes to the ``wake_queue`` and overtakes a long queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import admin
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, rig_on
from tests.support.parking_rig import assert_ran_in_order, park
from tests.support.rabbitmq import RabbitMQ

QUEUE, WAKE_QUEUE = "usual", "woken"
MANY = 40


@pytest.fixture(params=["redis", "rabbitmq"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Return a rig with a worker of one slot that reads both queues and fetches one by one."""
    conf: dict[str, Any] = {"locks_ttl": 30, "task_default_queue": QUEUE}
    if request.param == "rabbitmq":
        broker: RabbitMQ = request.getfixturevalue("rabbitmq")
        conf |= {"broker_url": broker.url}
    arguments = ("-Q", f"{QUEUE},{WAKE_QUEUE}", "--prefetch-multiplier", "1")
    with (
        EmbeddedServer() as server,
        rig_on(server, **conf) as rig,
        rig.worker(*arguments, concurrency=1),
    ):
        yield rig


def test_check_reports_a_queue_that_no_worker_reads(rig: Rig) -> None:
    task = rig.task("work")
    for queue, is_read in ((WAKE_QUEUE, True), ("unread", False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(task), "_lock_values", {"on_conflict": "park", "wake_queue": queue, "key": "k"}
            )
            found = [it for it in admin.check(rig.locks, rig.app) if it.where.startswith("queue")]
        assert [it.where for it in found] == ([] if is_read else ["queue 'unread'"])


@pytest.mark.parametrize("scope", ["running", "queued+running"])
def test_woken_tasks_overtake_a_long_queue(rig: Rig, scope: str) -> None:
    key, gate = f"overtakes-{scope}", f"closed-{scope}"
    with rig.locks.hold(key):
        lock = {"wake_queue": WAKE_QUEUE, "scope": scope}
        parked = park(rig, key, 3, lock=lock)
        blocking = rig.task("work").delay(f"{key}-other", gate)
        rig.wait_started(blocking)
        others = [rig.task("work").delay(f"{key}-other-{number}") for number in range(MANY)]
    rig.wait_event("woken", key)
    rig.open(gate)
    assert_ran_in_order(rig, key, parked)
    for other in others:
        other.get(timeout=PATIENCE)
    order = [it["id"] for it in rig.starts()]
    before = order.index(parked[-1].id) - len(parked)
    assert before < MANY / 2, f"{before} of {MANY} tasks ran first"


def test_task_without_a_wake_queue_goes_to_its_own(rig: Rig) -> None:
    """The control: there it waits for all that were sent before it."""
    with rig.locks.hold("own"):
        parked = park(rig, "own", 1)
        blocking = rig.task("work").delay("own-other", "closed")
        rig.wait_started(blocking)
        others = [rig.task("work").delay(f"own-other-{number}") for number in range(MANY)]
    rig.wait_event("woken", "own")
    rig.open("closed")
    assert parked[0].get(timeout=PATIENCE) == "own"
    order = [it["id"] for it in rig.starts()]
    assert order.index(parked[0].id) > order.index(others[-1].id) - 3
