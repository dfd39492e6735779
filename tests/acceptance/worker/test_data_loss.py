"""The lock server loses its data while tasks run: they keep their locks, and nothing runs twice."""

import pytest

from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until

# The ttl of the tasks here is 2 or 3 s; they run for several of these.
LONG_RUN = 9.0


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent", "eventlet"])
def test_running_task_keeps_its_lock(pool: str) -> None:
    """The main process, or the task's own, asserts the lease again; the task does not notice."""
    with Stage() as stage, stage.worker(pool, 2) as worker:
        key = new_key("kept")
        result = stage.send("work", key, "sleep", LONG_RUN)
        holder = stage.wait_held(key).holders[0]
        stage.wait_wrote(key, "start")
        stage.store.flushdb()
        after = stage.wait_held(key).holders[0]
        assert (after.token, after.fence, after.task_id) == (holder.token, holder.fence, result.id)
        result.get(timeout=60)
        assert stage.journal.wrote(key, "done")
        assert f"the lock server lost the lease on lock '{key}'" in worker.log()
        stage.wait_free(key)


def test_child_in_c_code_keeps_its_lock() -> None:
    """The child cannot do anything meanwhile: the main process asserts the lease for it."""
    with Stage() as stage, stage.worker("prefork", 1):
        key = new_key("gil")
        result = stage.send("work", key, "hold_gil", LONG_RUN)
        stage.wait_held(key)
        # Late enough that the main process renews the lease: it looks the token up at a ttl / 3.
        wait_until(lambda: (it := stage.info(key)) and it.holders and it.holders[0].renewals, 20)
        stage.store.flushdb()
        stage.wait_held(key)
        result.get(timeout=60)
        stage.journal.check_exclusive(key)


def test_duplicate_in_another_worker_does_not_run_beside_it() -> None:
    """Its policy is skip. While nobody knows who holds the lock it is put back, not dropped."""
    with (
        Stage() as stage,
        stage.worker("prefork", 1),
        stage.worker("prefork", 1, "-Q", "second") as second,
    ):
        key = new_key("beside")
        first = stage.send("work", key, "sleep", LONG_RUN)
        stage.wait_wrote(key, "start")
        stage.send("follow", new_key("known"), queue="second").get(timeout=30)
        stage.store.flushdb()
        duplicate = stage.send("work", key, "sleep", 0.1, queue="second")
        wait_until(lambda: "is put back" in second.log(), 20, what="the duplicate to be put back")
        assert "the lock server lost its data" in second.log()
        first.get(timeout=60)
        duplicate.get(timeout=60)
        stage.journal.check_exclusive(key)
