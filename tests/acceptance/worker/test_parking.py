"""Real workers: a parked task waits for its lock without a worker slot, and runs in its turn."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

from celery_locks import AlreadyQueued, LockConflict, admin
from tests.support.celery_app import make_app
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.parking_rig import (
    LONG,
    PARK,
    assert_one_at_a_time,
    assert_ran_in_order,
    park,
    wait_nothing_parked,
    wait_parked,
)
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker(concurrency=3):
        yield rig


@pytest.fixture(scope="module", params=["prefork", "threads", "solo", "gevent"])
def one_slot(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Return a rig with a worker of one slot, in each pool."""
    with fresh_rig(locks_ttl=30) as rig, rig.worker(pool=request.param, concurrency=1):
        yield rig


@pytest.fixture
def key() -> str:
    return f"park-{next(_numbers)}"


def test_parked_tasks_occupy_no_slot_and_run_in_their_order(one_slot: Rig, key: str) -> None:
    rig = one_slot
    with rig.locks.hold(key):
        results = park(rig, key, 5)
        assert rig.task("echo").delay("free").get(timeout=PATIENCE) == "free"
        assert not rig.starts(results[0].id)
    assert_ran_in_order(rig, key, results)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_many_tasks_of_one_lock_run_one_at_a_time(pool: str, key: str) -> None:
    """They arrive at once in several slots, so they meet the lock in every state."""
    with fresh_rig(locks_ttl=30) as rig, rig.worker(pool=pool, concurrency=4):
        results = [rig.task("work").apply_async((key,), lock=PARK) for _ in range(40)]
        for result in results:
            assert result.get(timeout=LONG) == key
        assert_one_at_a_time(rig, key)
        assert len(rig.starts()) == 40, "each has run once"
        wait_nothing_parked(rig, forgets_names=True)


def test_parked_tasks_of_a_semaphore_fill_its_slots(rig: Rig, key: str) -> None:
    slots, name = rig.task("slots"), f"{key}:2"
    running = [slots.apply_async((name, key), lock=PARK) for _ in range(2)]
    for result in running:
        rig.wait_started(result)
    parked = [slots.apply_async((name, f"{key}-later"), lock=PARK) for _ in range(2)]
    wait_parked(rig, name, 2)
    rig.open(key)
    for result in parked:
        rig.wait_started(result)
    assert len(rig.locks.holders(name)) == 2
    rig.open(f"{key}-later")
    for result in (*running, *parked):
        result.get(timeout=PATIENCE)


def test_message_is_the_same_after_it_was_parked(rig: Rig, key: str) -> None:
    options: dict[str, Any] = {
        "headers": {"tenant": "acme", "trace": {"id": [1, 2]}},
        "priority": 3,
        "soft_time_limit": 50,
        "time_limit": 60,
        "expires": 3600,
        "shadow": "shown",
        "stamp": "red",
        "stamped_headers": ["stamp"],
    }
    shows = rig.task("shows")
    usual = shows.apply_async((key,), lock=PARK, **options).get(timeout=PATIENCE)
    with rig.locks.hold(key):
        result = shows.apply_async((key,), lock=PARK, **options)
        wait_parked(rig, key, 1)
    parked = result.get(timeout=PATIENCE)
    for shown in (usual, parked):
        assert shown.pop("expires")
        del shown["headers"]["celery_locks"]
        shown["headers"] = {
            name: value
            for name, value in shown["headers"].items()
            if name in ("tenant", "trace", "stamp", "stamped_headers", "stamps")
        }
    assert parked == usual
    assert parked["headers"]["tenant"] == "acme"


def test_links_and_a_countdown_survive(rig: Rig, key: str) -> None:
    with rig.locks.hold(key):
        linked = rig.task("work").si(f"{key}-linked").set(task_id=f"{key}-linked")
        result = rig.task("work").apply_async((key,), lock=PARK, countdown=0.5, link=linked)
        wait_parked(rig, key, 1)
    assert result.get(timeout=PATIENCE) == key
    wait_until(lambda: rig.starts(f"{key}-linked"), PATIENCE, what="the linked task")


def test_retries_are_parked_again_and_keep_their_count(rig: Rig, key: str) -> None:
    """The task behind it has its turn between two attempts, as it came first."""
    with rig.locks.hold(key):
        first = rig.task("again").apply_async((key,), {"times": 2, "gate": key}, lock=PARK)
        wait_parked(rig, key, 1)
        second = park(rig, key)[0]
    rig.wait_started(first)
    rig.open(key)
    assert first.get(timeout=LONG) == 2
    assert second.get(timeout=LONG) == key
    assert [it["retries"] for it in rig.starts(first.id)] == [0, 1, 2]
    assert len(rig.starts(second.id)) == 1
    wait_nothing_parked(rig)


def test_revoked_task_leaves_the_queue_at_once(rig: Rig, key: str) -> None:
    with rig.locks.hold(key):
        first, second = park(rig, key, 2)
        first.revoke()
        with pytest.raises(TaskRevokedError):
            first.get(timeout=PATIENCE)
        wait_parked(rig, key, 1)
    assert_ran_in_order(rig, key, [second])
    assert not rig.starts(first.id)


def test_task_revoked_by_a_stamped_header_is_discarded_in_its_turn(rig: Rig, key: str) -> None:
    """Only a worker that gets the message can compare its headers."""
    with rig.locks.hold(key):
        [first] = park(rig, key, stamp=key, stamped_headers=["stamp"])
        [second] = park(rig, key)
        rig.app.control.revoke_by_stamped_headers({"stamp": key}, reply=True, limit=1)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=LONG)
    assert_ran_in_order(rig, key, [second])
    assert not rig.starts(first.id)


def test_task_that_expires_while_it_is_parked_does_not_run(rig: Rig, key: str) -> None:
    with rig.locks.hold(key):
        [first] = park(rig, key, expires=5)
        expired_at = time.time() + 5
        [second] = park(rig, key)
        wait_until(lambda: time.time() > expired_at, what="the task to expire")
    with pytest.raises(TaskRevokedError):
        first.get(timeout=LONG)
    assert_ran_in_order(rig, key, [second])


def test_paused_lock_keeps_tasks_parked(rig: Rig, key: str) -> None:
    admin.pause(rig.locks, key)
    results = park(rig, key, 2)
    admin.resume(rig.locks, key)
    assert_ran_in_order(rig, key, results)


def test_task_fails_if_too_many_wait(rig: Rig, key: str) -> None:
    lock = {"max_parked": 1}
    with rig.locks.hold(key):
        results = park(rig, key, lock=lock)
        late = rig.task("work").apply_async((key,), lock={**PARK, **lock})
        with pytest.raises(LockConflict):
            late.get(timeout=PATIENCE)
    assert_ran_in_order(rig, key, results)


def test_call_fails_if_too_many_wait(rig: Rig, key: str) -> None:
    """Its publisher learns of it: nothing is dropped silently."""
    lock = {**PARK, "scope": "queued+running", "max_parked": 1}
    work = rig.task("work")
    with rig.locks.hold(key):
        results = [work.apply_async((key,), lock=lock)]
        with pytest.raises(AlreadyQueued):
            work.apply_async((key,), lock=lock)
    assert_ran_in_order(rig, key, results)


def test_wait_then_park(rig: Rig, key: str) -> None:
    lock = {"on_conflict": {"run": "wait", "then": "park"}, "wait": 0.5}
    with rig.locks.hold(key):
        result = rig.task("work").apply_async((key,), lock=lock)
        rig.wait_event("parked", key)
        wait_parked(rig, key, 1)
        assert rig.task("echo").delay("free").get(timeout=PATIENCE) == "free"
    assert_ran_in_order(rig, key, [result])


def test_task_that_waited_is_parked_in_its_place(rig: Rig, key: str) -> None:
    """It came before those that were parked while it waited."""
    lock = {"on_conflict": {"run": "wait", "then": "park"}, "wait": 1}
    with rig.locks.hold(key):
        first = rig.task("work").apply_async((key,), lock=lock)
        wait_parked(rig, key, 1)
        second = park(rig, key)[0]
        rig.wait_event("parked", key, 2)
    assert_ran_in_order(rig, key, [first, second])


def test_task_that_waits_keeps_its_place_behind_a_parked_one(rig: Rig, key: str) -> None:
    """The one before it is woken: then its message holds the lock, until it starts."""
    with rig.locks.hold(key):
        first = park(rig, key)[0]
        waits = rig.task("work").apply_async((key,), lock={"on_conflict": "wait", "wait": 60})
        wait_parked(rig, key, 2)
        last = park(rig, key)[0]
    assert_ran_in_order(rig, key, [first, waits, last])


def test_calls_are_parked_at_publish_in_the_order_of_the_calls(rig: Rig, key: str) -> None:
    """With several slots, the order in which workers begin messages is another one."""
    lock = {"on_conflict": "park", "scope": "queued+running"}
    results = [rig.task("work").apply_async((key,), lock=lock) for _ in range(20)]
    assert_ran_in_order(rig, key, results)


def test_calls_that_are_parked_at_publish_keep_their_order_with_retries(rig: Rig, key: str) -> None:
    """A retry keeps the lock with this scope: nobody comes between two attempts."""
    lock = {"on_conflict": "park", "scope": "queued+running"}
    first = rig.task("again").apply_async((key,), {"times": 1}, lock=lock)
    results = [rig.task("work").apply_async((key,), lock=lock) for _ in range(3)]
    assert first.get(timeout=LONG) == 1
    assert_ran_in_order(rig, key, results)


@pytest.mark.parametrize("option", ["connection", "producer"])
def test_call_with_a_connection_of_its_own_is_parked(rig: Rig, key: str, option: str) -> None:
    """Celery would send the message over that connection, where it is only to be recorded."""
    lock = {"on_conflict": "park", "scope": "queued+running"}
    with rig.app.connection_for_write() as connection:
        own = connection if option == "connection" else connection.Producer()
        with rig.locks.hold(key):
            result = rig.task("work").apply_async((key,), lock=lock, **{option: own})
            wait_parked(rig, key, 1)
    assert_ran_in_order(rig, key, [result])


def test_killed_child_lets_the_next_parked_task_start(rig: Rig, key: str) -> None:
    """kill -9: the main process releases the lock long before it would lapse."""
    first = rig.task("work").apply_async((key, key), lock=PARK)
    pid = rig.wait_started(first)["pid"]
    results = park(rig, key, 2)
    os.kill(pid, signal.SIGKILL)
    for result in results:
        assert result.get(timeout=LONG) == key
    assert [len(rig.starts(result.id)) for result in results] == [1, 1]
    wait_nothing_parked(rig)


def test_killed_child_of_a_woken_task_runs_it_again(rig: Rig, key: str) -> None:
    """acks_late and reject_on_worker_lost: the broker has the message of the run that died."""
    with rig.locks.hold(key):
        first = rig.task("stubborn").apply_async((key, key), lock=PARK)
        wait_parked(rig, key, 1)
        second = park(rig, key, task="late")[0]
    os.kill(rig.wait_started(first)["pid"], signal.SIGKILL)
    rig.wait_started(first, times=2)
    rig.open(key)
    for result in (first, second):
        assert result.get(timeout=LONG) == key
    assert [len(rig.starts(result.id)) for result in (first, second)] == [2, 1]
    wait_nothing_parked(rig)


def test_first_worker_wakes_what_came_due_without_any(key: str) -> None:
    """Nobody is there to publish when the lock comes free: the messages wait for a worker."""
    lock = {**PARK, "scope": "queued+running"}
    with fresh_rig(locks_ttl=30) as rig:
        with rig.locks.hold(key):
            results = park(rig, key, 3, lock=lock)
        [woken] = rig.locks.holders(key)
        assert (woken.task_id, woken.is_queued) == (results[0].id, True)
        assert not any(rig.redis.llen(name) for name in ("celery", "unacked"))
        with rig.worker(concurrency=2):
            assert_ran_in_order(rig, key, results)


def test_new_worker_finishes_what_a_killed_worker_had_parked(key: str) -> None:
    """The whole worker dies, while one task runs and others are parked or are about to be."""
    with fresh_rig(locks_ttl=3) as rig:
        with rig.worker(concurrency=2) as worker:
            running = rig.task("work").apply_async((key, key), lock=PARK)
            rig.wait_started(running)
            results = park(rig, key, 4, task="late")
            worker.kill()
        later = rig.task("late").apply_async((key,), lock=PARK)
        with rig.worker(concurrency=2):
            for result in (*results, later):
                assert result.get(timeout=LONG) == key
            assert all(len(rig.starts(it.id)) == 1 for it in (*results, later))
            ids = [it["id"] for it in rig.starts() if it["id"] != running.id]
            assert [it for it in ids if it != later.id] == [it.id for it in results]
            wait_nothing_parked(rig)


def test_queue_that_only_the_caller_knows_is_declared(rig: Rig, key: str) -> None:
    """Its binding may not exist yet, and a broker drops what comes for an exchange without any."""
    queue = Queue(key, Exchange(f"{key}-topics", type="topic"), routing_key="work.#")
    lock = {**PARK, "scope": "queued+running"}
    with rig.locks.hold(key):
        options = {"queue": queue, "routing_key": "work.now"}
        result = rig.task("work").apply_async((key,), lock=lock, **options)
        wait_parked(rig, key, 1)
    wait_until(lambda: rig.redis.llen(key) == 1, LONG, what="the message in its queue")
    with rig.worker("-Q", key):
        assert result.get(timeout=PATIENCE) == key


def test_message_of_protocol_1_is_parked_at_publish_and_woken(rig: Rig, key: str) -> None:
    """It has the name of its task in its body; else every worker would leave it to others."""
    lock = {**PARK, "scope": "queued+running"}
    sender = make_app({**rig.conf, "task_protocol": 1})
    with closing(sender), rig.locks.hold(key):
        results = [sender.tasks["work"].apply_async((key,), lock=lock) for _ in range(2)]
        wait_parked(rig, key, 2)
        results[0].revoke()
        wait_parked(rig, key, 1)
    assert rig.app.AsyncResult(results[1].id).get(timeout=PATIENCE) == key
    wait_nothing_parked(rig)
    assert not rig.starts(results[0].id)
