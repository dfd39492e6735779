"""A key function that returns None, with a real worker: that call has no lock, in no process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.redis_keys import keys_of_locks
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig() as rig:
        yield rig


def lock_keys(rig: Rig) -> list[str]:
    return [key for key in keys_of_locks(rig.redis.keys("celery-locks:*")) if "}:e:" not in key]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_calls_without_a_name_run_side_by_side_and_others_are_locked(rig: Rig, pool: str) -> None:
    """The caller, the main process (which looks for the locks of running tasks) and the child."""
    partly, gate = rig.task("partly"), f"gate-{pool}"
    free = [partly.delay(None, gate) for _ in range(2)]
    assert not any(result.deduplicated for result in free)
    assert lock_keys(rig) == []
    with rig.worker(pool=pool) as worker:
        for result in free:
            rig.wait_started(result)
        started = time.monotonic()
        # The main process looks a lock up after a third of its ttl, which is 1 s.
        wait_until(lambda: time.monotonic() > started + 1, PATIENCE)
        assert lock_keys(rig) == []
        locked = partly.delay("busy")
        assert partly.delay("busy").id == locked.id, "with a name it is unique as ever"
        rig.open(gate)
        assert [result.get(timeout=PATIENCE) for result in free] == ["", ""]
        assert locked.get(timeout=PATIENCE) == "busy"
        assert "supervised" not in worker.log
    rig.wait_free("busy")
