"""Messages that come twice, with real workers on a Redis broker.

A short visibility timeout and a busy sweep make copies of every unacknowledged message; they must
neither run beside the original, nor after it, nor take the message away from a job that died.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, Worker, fresh_rig, rig_on
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_numbers = itertools.count()
VISIBLE_AFTER = 2


def transport(**more: Any) -> dict[str, Any]:
    return {
        "visibility_timeout": VISIBLE_AFTER,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        **more,
    }


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


@pytest.fixture(scope="module")
def copying() -> Iterator[Rig]:
    """Nothing keeps a running task's message invisible: copies come every two seconds."""
    conf = {"broker_transport_options": transport(), "locks_keep_invisible": False}
    with fresh_rig(**conf) as rig, rig.worker("-n", "one@%h", concurrency=3) as worker:
        rig.first = worker  # type: ignore[attr-defined]
        yield rig


@pytest.fixture(scope="module")
def delayed(copying: Rig) -> Any:
    """Published first, looked at last: the others run while it waits for its time."""
    return copying.task("late").apply_async([f"delayed-{next(_numbers)}"], countdown=5)


def wait_drained(rig: Rig, prefix: str = "") -> None:
    """No message is left anywhere: every copy has come and gone."""

    def drained() -> bool:
        queues = rig.redis.llen(f"{prefix}celery") + rig.redis.hlen(f"{prefix}unacked")
        return queues == 0

    wait_until(drained, PATIENCE, every=0.1, what="the queue and the unacknowledged to be empty")


def ran_once(rig: Rig, result: Any) -> bool:
    entries = [entry["what"] for entry in rig.journal(result.id)]
    return entries == ["start", "end", "success"]


def test_a_copy_waits_while_the_original_runs_and_then_drops_out(
    copying: Rig, delayed: Any, key: str
) -> None:
    """At the visibility timeout, again and again: one execution and one result."""
    result = copying.task("late").delay(key, key)
    copying.wait_event("requeued", key, times=2)
    assert len(copying.starts(result.id)) == 1
    copying.open(key)
    assert result.get(timeout=PATIENCE) == key
    wait_until(lambda: _dropped(copying, result), PATIENCE, what="the copy to drop out")
    assert ran_once(copying, result)


def _dropped(rig: Rig, result: Any) -> bool:
    return f"[{result.id}] has run already" in rig.first.log  # type: ignore[attr-defined]


def test_a_copy_does_not_use_a_second_slot_of_a_limit(copying: Rig, key: str) -> None:
    """A limit lets others in, not a second run of the same message."""
    late = copying.task("late")
    result = late.apply_async([key, key], lock={"limit": 3})
    copying.wait_event("requeued", key)
    assert len(copying.starts(result.id)) == 1
    other = late.apply_async([key], lock={"limit": 3})
    assert other.get(timeout=PATIENCE) == key
    copying.open(key)
    assert result.get(timeout=PATIENCE) == key


def test_a_copy_does_not_wait_behind_its_original(copying: Rig, key: str) -> None:
    """With ``wait`` too a copy is put back: in line it would take up a slot only to drop out."""
    late = copying.task("late")
    result = late.apply_async([key, key], lock={"on_conflict": "wait"})
    copying.wait_event("requeued", key)
    assert _waiters(copying, key) == []
    copying.open(key)
    assert result.get(timeout=PATIENCE) == key
    copying.wait_free(key)
    wait_until(lambda: _dropped(copying, result), PATIENCE, what="the copy to drop out")
    assert ran_once(copying, result)


def test_a_copy_in_line_with_its_original_runs_neither_beside_nor_after_it(
    copying: Rig, key: str
) -> None:
    """Both wait for somebody else; the limit lets both in, and the second gives way."""
    late = copying.task("late")
    lock = {"on_conflict": "wait", "limit": 2}
    one, two = (copying.locks.acquire(key, limit=2) for _ in range(2))
    assert one
    assert two
    result = late.apply_async([key, key], lock=lock)
    wait_until(lambda: _waiters(copying, key) == [result.id] * 2, PATIENCE, what="both in line")
    one.release()
    two.release()
    copying.wait_event("requeued", key)
    copying.open(key)
    assert result.get(timeout=PATIENCE) == key
    wait_until(lambda: _dropped(copying, result), PATIENCE, what="the copy to drop out")
    assert ran_once(copying, result)


def _waiters(rig: Rig, key: str) -> list[str | None]:
    info = rig.locks.info(key)
    return [waiter.task_id for waiter in info.waiters] if info else []


def test_copies_of_a_delayed_message_start_together_and_one_runs(
    copying: Rig, delayed: Any
) -> None:
    """A countdown beyond the visibility timeout: every worker that has a copy starts it at once."""
    assert delayed.get(timeout=PATIENCE)
    wait_drained(copying)
    assert ran_once(copying, delayed)


def test_a_killed_child_does_not_lose_the_job(copying: Rig, key: str) -> None:
    """kill -9 of the process that runs it, while a copy is put back: it runs once more."""
    result = copying.task("stubborn").delay(key, key)
    first = copying.wait_started(result)
    copying.wait_event("requeued", key)
    os.kill(first["pid"], signal.SIGKILL)
    copying.open(key)
    assert result.get(timeout=PATIENCE) == key
    wait_drained(copying)
    assert [entry["what"] for entry in copying.journal(result.id)].count("success") == 1


def test_a_killed_worker_does_not_lose_the_job(copying: Rig, key: str) -> None:
    """kill -9 of a whole worker mid-run: another one runs it, after the lease has lapsed."""
    with copying.worker("-n", "two@%h", "-Q", "two") as doomed:
        result = copying.task("late").apply_async([key, key], queue="two")
        copying.wait_started(result)
        copying.wait_event("requeued", key)
        doomed.kill()
    with copying.worker("-n", "three@%h", "-Q", "two"):
        copying.wait_started(result, times=2)
        copying.open(key)
        assert result.get(timeout=PATIENCE) == key


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_a_running_message_is_kept_invisible(prefix: str, key: str) -> None:
    """The default: no copies are made at all, and the message outlives the worker's death."""
    options = transport(global_keyprefix=prefix)
    with fresh_rig(broker_transport_options=options, locks_ttl=1) as rig:
        with rig.worker("-n", "one@%h") as doomed:
            result = rig.task("late").delay(key, key)
            rig.wait_started(result)
            first = _taken_at(rig, prefix)
            wait_until(
                lambda: _taken_at(rig, prefix) > first + 2 * VISIBLE_AFTER,
                PATIENCE,
                every=0.05,
                what="the message to be kept for twice its timeout",
            )
            assert rig.events("requeued", key) == []
            doomed.kill()
        with rig.worker("-n", "two@%h"):
            rig.wait_started(result, times=2)
            rig.open(key)
            assert result.get(timeout=PATIENCE) == key
            wait_drained(rig, prefix)
            assert len(rig.starts(result.id)) == 2


def _taken_at(rig: Rig, prefix: str) -> float:
    """By the broker's own index: from here the visibility timeout counts."""
    scores = rig.redis.zrange(f"{prefix}unacked_index", 0, 0, withscores=True)
    return float(scores[0][1]) if scores else 0.0


@pytest.fixture
def behind_proxy() -> Iterator[tuple[Rig, Proxy, Worker]]:
    with (
        EmbeddedServer() as server,
        Proxy(server.host, server.port) as proxy,
        rig_on(server, locks_url=server.url) as rig,
        rig.worker(
            broker_url=proxy.url,
            broker_connection_retry=True,
            broker_transport_options=transport(visibility_timeout=60),
        ) as worker,
    ):
        yield rig, proxy, worker


def test_a_dropped_connection_does_not_run_the_job_twice(
    behind_proxy: tuple[Rig, Proxy, Worker], key: str
) -> None:
    """Celery restores what is unacknowledged when the connection breaks: the copy comes at once."""
    rig, proxy, _ = behind_proxy
    result = rig.task("late").delay(key, key)
    rig.wait_started(result)
    proxy.cut()
    rig.wait_event("requeued", key)
    assert len(rig.starts(result.id)) == 1
    rig.open(key)
    assert result.get(timeout=PATIENCE) == key
    wait_drained(rig)
    assert ran_once(rig, result)


def test_a_crash_between_release_and_result_runs_it_again() -> None:
    """The body has ended and its result died with the process; after a ttl that is clear."""
    with fresh_rig() as rig, rig.worker():
        result = rig.task("stubborn").delay("key", deadly=True)
        assert result.get(timeout=PATIENCE) == "key"
        assert len(rig.starts(result.id)) == 2
        wait_drained(rig)


def test_a_crash_between_release_and_retry_leaves_the_job_to_the_retry() -> None:
    """Its message is in the queue already: the copy of this attempt must not send a second one."""
    with fresh_rig() as rig, rig.worker() as worker:
        result = rig.task("stubborn").delay("key", retries=True)
        wait_until(lambda: "has run already" in worker.log, PATIENCE, what="the copy to drop out")
        assert "is put back" not in worker.log
        assert len(rig.starts(result.id)) == 1


def test_a_retry_does_not_run_beside_a_copy_of_the_attempt_that_published_it(key: str) -> None:
    """kill -9 after the retry was published: the redelivered attempt runs when the retry comes."""
    with fresh_rig() as rig, rig.worker("-n", "one@%h"):
        result = rig.task("stubborn").delay(key, key, retry_queue="retries")
        copy = rig.wait_started(result, times=2)
        assert copy["retries"] == 0
        requeued = len(rig.events("requeued", key))
        with rig.worker("-n", "two@%h", "-Q", "retries"):
            wait_until(
                lambda: len(rig.events("requeued", key)) > requeued or rig.starts(result.id)[2:],
                PATIENCE,
                what="the retry to come",
            )
            assert len(rig.starts(result.id)) == 2, "the copy is still running"
            rig.open(key)
            rig.wait_started(result, times=3)
            wait_until(lambda: len(_runs(rig, result)) == 5, PATIENCE, what="both to end")
        expected = [("start", 0), ("start", 0), ("end", 0), ("start", 1), ("end", 1)]
        assert _runs(rig, result) == expected


def _runs(rig: Rig, result: Any) -> list[tuple[str, int]]:
    entries = [entry for entry in rig.journal(result.id) if entry["what"] != "success"]
    return [(entry["what"], entry["retries"]) for entry in entries]


def test_a_late_copy_drops_out_where_there_are_no_results() -> None:
    """Without a result backend there is nothing to ask for a result, and nobody waits for one."""
    with fresh_rig(result_backend=None) as rig, rig.worker(pool="solo") as worker:
        first = rig.task("late").apply_async(["key"])
        wait_until(lambda: rig.journal(first.id)[1:], PATIENCE, what="it to end")
        rig.wait_free("key")
        rig.task("late").apply_async(["key"], task_id=first.id, countdown=0.1)
        wait_until(lambda: "has run already" in worker.log, PATIENCE, what="the copy to drop out")
        assert "Traceback" not in worker.log
        assert len(rig.starts(first.id)) == 1
