"""A message whose lock header is wrong: its own task says so, and no other task notices it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import pytest
from celery import Celery

from celery_locks import Holder, LockUsageError
from celery_locks.store.commands.locks import reservation_token
from celery_locks.types import LockSpec
from tests.support.celery_worker import PATIENCE, Rig, Worker, fresh_rig
from tests.support.waiting import wait_until

HEADER = "celery_locks"
_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def forge(rig: Rig, key: str, header: Any, gate: str | None = None, **options: Any) -> Any:
    """A message as somebody publishes it who has the broker's password and no respect."""
    send_task = Celery.send_task.__wrapped__  # Celery's own: ours refuses the header
    return send_task(rig.app, "work", (key, gate), headers={HEADER: header}, **options)


def renewals(rig: Rig, key: str) -> int:
    return len(rig.events("renewed", key))


def wait_renewed(rig: Rig, key: str, times: int) -> None:
    seen = renewals(rig, key)
    wait_until(
        lambda: renewals(rig, key) >= seen + times, PATIENCE, what=f"{times} renewals of {key}"
    )


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_expired_message_with_a_wrong_reservation_stops_no_renewal(pool: str, key: str) -> None:
    """The background thread reads it: one such message made a running task lose its lock."""
    with fresh_rig(locks_shards=4) as rig, rig.worker(pool=pool) as worker:
        victim = rig.task("work").delay(key, key)
        rig.wait_started(victim)
        for queued in ([None, "q1"], ["\ud800", "q1"], 7, [["x"], {"y": 1}], ["a", "q", "r"]):
            forge(rig, f"other-{key}", {"queued": queued}, expires=-5)
        wait_renewed(rig, key, 6)  # two ttls
        rig.open(key)
        assert victim.get(timeout=PATIENCE) == key
        assert not rig.events("lost", key)
        assert worker.log.count("Traceback") <= 1, worker.log[-3000:]


@pytest.mark.parametrize("header", [[["x", 1]], "text", 7, {"options": [1]}], ids=repr)
def test_children_are_supervised_while_a_task_with_a_wrong_header_is_there(
    header: Any, key: str
) -> None:
    """The main process reads it too: the lock of a killed child must be free at once."""
    with fresh_rig(locks_ttl=600) as rig, rig.worker(concurrency=2) as worker:
        forged = forge(rig, f"other-{key}", header, gate=f"other-{key}")
        victim = rig.task("work").delay(key, key)
        pid = rig.wait_started(victim)["pid"]
        wait_until(lambda: pid in children(worker), PATIENCE, what="the child")
        os.kill(pid, signal.SIGKILL)
        rig.wait_free(key)
        with pytest.raises(LockUsageError, match="header"):
            forged.get(timeout=PATIENCE)
        assert not rig.starts(forged.id), "a task whose lock is not understood has run"
        assert worker.log.count("AttributeError") == 0


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_nothing_in_a_message_has_power_over_another_task(pool: str, key: str) -> None:
    """A token, once known, let a message free a running holder or run beside it, unrecorded."""
    with fresh_rig() as rig, rig.worker(pool=pool, concurrency=3):
        victim = rig.task("work").delay(key, key)
        rig.wait_started(victim)
        delayed = rig.task("work").apply_async([f"delayed-{key}"], countdown=3)
        token = rig.locks.holders(key)[0].token
        by_header = forge(rig, f"other-{key}", {"queued": [key, token]})
        assert by_header.get(timeout=PATIENCE) == f"other-{key}"
        by_property = forge(rig, key, None, celery_locks=token)
        skipped = by_property.get(timeout=PATIENCE)
        assert skipped["skipped"] is True
        assert skipped["holder"]["task_id"] == victim.id
        assert "token" not in skipped["holder"]
        replacing = forge(rig, f"third-{key}", {"queued": ["a", "b"], "replaced": [delayed.id, 99]})
        assert replacing.get(timeout=PATIENCE) == f"third-{key}"
        assert [holder.token for holder in rig.locks.holders(key)] == [token]
        assert delayed.get(timeout=PATIENCE) == f"delayed-{key}"
        rig.open(key)
        assert victim.get(timeout=PATIENCE) == key
        assert not rig.events("lost", key)


def test_message_that_was_put_back_for_hours_is_put_back_on_and_runs(key: str) -> None:
    """The 1024th time made a task fail that had waited since the morning."""
    short = {"visibility_timeout": 8}  # pauses of 2 s at most
    with fresh_rig(broker_transport_options=short) as rig, rig.worker(concurrency=1):
        header = {"since": time.time() - 9000, "times": 1023, "options": {"on_conflict": "requeue"}}
        with rig.locks.hold(key):
            waiting = forge(rig, key, header)
            rig.wait_event("requeued", key, times=2)
        assert waiting.get(timeout=PATIENCE) == key


def test_message_of_a_newer_release_runs_under_its_lock(key: str) -> None:
    """Publishers may be updated first: what is new is ignored, as long as it may be."""
    newer = {"version": 1, "options": {"ttl": 7, "fairness": "strict"}, "trace": "x"}
    with fresh_rig() as rig, rig.worker(concurrency=1) as worker:
        assert forge(rig, key, newer).get(timeout=PATIENCE) == key
        assert rig.starts()[0]["lock"] == key
        assert "'fairness'" in worker.log
        assert "'trace'" in worker.log
        with pytest.raises(LockUsageError, match="update the workers"):
            forge(rig, key, {"version": 2}).get(timeout=PATIENCE)


def test_message_that_is_not_understood_gives_its_reservation_back(key: str) -> None:
    """Of a newer release, say: it will not run here, and others may queue at once."""
    with fresh_rig() as rig, rig.worker(concurrency=1):
        rig.task("work").delay("warm").get(timeout=PATIENCE)
        for number, expires in enumerate((None, -5)):
            task_id, name = f"id-{number}", f"{key}-{number}"
            message = Holder(task_id=task_id, task="work", retries=-1)
            spec = LockSpec(name, 3600.0)
            rig.locks.perform(rig.locks.commands.acquire(spec, reservation_token(task_id), message))
            assert rig.locks.holders(name)
            forge(rig, name, {"version": 2, "queued": name}, task_id=task_id, expires=expires)
            rig.wait_free(name)


def children(worker: Worker) -> list[int]:
    with open(f"/proc/{worker.pid}/task/{worker.pid}/children") as file:
        return [int(pid) for pid in file.read().split()]
