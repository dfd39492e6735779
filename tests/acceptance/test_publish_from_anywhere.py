"""Calls by name, with a task id of the caller's own, or limited in number; with a real worker.

As in ``test_queued.py``, after every test the store holds no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_locks import AlreadyQueued, LockConflict, is_skipped, send_task
from celery_locks.integration.app_locks import locks_of
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.client_app import close_client, open_client
from tests.support.queued_calls import (
    busy,
    hold_running,
    numbers,
    starts_under,
    values,
    wait_nothing_left,
)
from tests.support.waiting import wait_until

# Celery's result backend uses what redis-py 8.1 calls deprecated, here in the caller's process.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

RAISE = {"on_conflict": {"publish": "raise"}}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker("-n", "one@%h"):
        yield rig


@pytest.fixture
def key() -> str:
    return f"from-anywhere-{next(numbers)}"


@pytest.fixture(autouse=True)
def nothing_left(rig: Rig) -> Iterator[None]:
    yield
    wait_nothing_left(rig)


# A task id of the caller's own.


def test_own_task_id_is_used_and_a_duplicate_gets_the_existing_one(rig: Rig, key: str) -> None:
    """The caller's id is no reason to queue the work twice; the result says whose it is."""
    sent = rig.task("sent")
    with busy(rig):
        first = sent.apply_async([key, 1], task_id=f"{key}-first")
        second = sent.apply_async([key, 2], task_id=f"{key}-second")
        with pytest.raises(AlreadyQueued) as raised:
            sent.apply_async([key, 3], task_id=f"{key}-third", lock=RAISE)
    assert (first.id, first.deduplicated) == (f"{key}-first", False)
    assert (second.id, second.deduplicated) == (first.id, True)
    assert raised.value.task_id == first.id
    assert second.get(timeout=PATIENCE) == 1
    assert values(rig, key) == [1]


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_same_task_id_twice_is_one_message(rig: Rig, key: str, scope: str) -> None:
    """An id that is made of the work, such as export-7, is the same for each call."""
    sent, options = rig.task("sent"), {"task_id": f"{key}-id", "lock": {"scope": scope}}
    with busy(rig):
        results = [sent.apply_async([key, n], **options) for n in range(3)]
        with pytest.raises(AlreadyQueued):
            sent.apply_async([key, 3], task_id=f"{key}-id", lock={"scope": scope, **RAISE})
    assert [result.deduplicated for result in results] == [False, True, True]
    assert results[2].get(timeout=PATIENCE) == 0
    assert values(rig, key) == [0]


def test_same_task_id_while_it_runs_is_one_message(rig: Rig, key: str) -> None:
    first = rig.task("sent").apply_async([key, "first", key], task_id=f"{key}-id")
    rig.wait_started(first)
    second = rig.task("sent").apply_async([key, "second"], task_id=f"{key}-id")
    assert (second.id, second.deduplicated) == (first.id, True)
    rig.open(key)
    assert second.get(timeout=PATIENCE) == "first"
    assert values(rig, key) == ["first"]


def test_message_with_an_own_task_id_is_replaced(rig: Rig, key: str) -> None:
    sent, replace = rig.task("sent"), {"on_conflict": {"publish": "replace", "run": "requeue"}}
    with busy(rig):
        first = sent.apply_async([key, 1], task_id=f"{key}-first")
        second = sent.apply_async([key, 2], task_id=f"{key}-second", lock=replace)
        assert first.state == "REVOKED"
    assert second.get(timeout=PATIENCE) == 2
    assert values(rig, key) == [2]


def test_own_task_ids_in_a_canvas_stay_as_they_are(rig: Rig, key: str) -> None:
    """The others wait for exactly these ids: every member is published and its run decides."""
    sent, lock = rig.task("sent"), {"on_conflict": {"publish": "raise", "run": "requeue"}}
    members = [sent.si(key, n).set(task_id=f"{key}-{n}", lock=lock) for n in range(2)]
    result = group(members, app=rig.app).apply_async()
    assert [each.id for each in result] == [f"{key}-0", f"{key}-1"]
    assert result.get(timeout=PATIENCE) == [0, 1]


@pytest.mark.parametrize("own_id", [True, False])
def test_last_step_of_a_canvas_is_published_by_the_worker_and_its_run_decides(
    rig: Rig, key: str, own_id: bool
) -> None:
    """Raised at publish, the error would come out of the step before and nobody would answer."""
    first = hold_running(rig, key)
    lock = {"on_conflict": {"publish": "raise", "run": "raise"}}

    def last(number: int) -> Any:
        step = rig.task("sent").si(key, "last").set(lock=lock)
        return step.set(task_id=f"{key}-last-{number}") if own_id else step

    echo = rig.task("echo")
    results = [
        chain(echo.si(1), last(1)).apply_async(),
        chord([echo.si(1), echo.si(2)], app=rig.app)(last(2)),
    ]
    for result in results:
        with pytest.raises(LockConflict):
            result.get(timeout=PATIENCE)
    rig.open(key)
    assert first.get(timeout=PATIENCE) == "first"


def test_own_task_id_of_a_callback_is_published_and_its_run_decides(rig: Rig, key: str) -> None:
    first = hold_running(rig, key)
    lock = {"on_conflict": {"publish": "raise", "run": "requeue"}}
    callback = rig.task("sent").si(key, "called back").set(task_id=f"{key}-callback", lock=lock)
    caller = rig.task("echo").apply_async([1], link=callback)
    assert caller.get(timeout=PATIENCE) == 1
    rig.wait_event("requeued", key)
    rig.open(key)
    first.get(timeout=PATIENCE)
    wait_until(lambda: len(starts_under(rig, key)) == 2, PATIENCE, what="the callback")


# By name.


@pytest.fixture
def client(rig: Rig) -> Iterator[Celery]:
    """An app of a process that knows no task."""
    app = open_client(rig.server.url)
    yield app
    locks_of(app).close()
    close_client(app)


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_unknown_task_is_unique_in_the_queue_and_runs_under_the_lock_of_the_call(
    rig: Rig, client: Celery, key: str, scope: str
) -> None:
    lock = {"key": f"{key}:{{value}}", "scope": scope}

    def publish(**options: Any) -> Any:
        return send_task(client, "sent", [key], {"value": 7}, lock={**lock, **options})

    with busy(rig):
        first, second = publish(), publish()
        with pytest.raises(AlreadyQueued) as raised:
            publish(on_conflict="raise")
        assert rig.task("sent").pending(key) is None, "the lock is that of the call"
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second.id == first.id == raised.value.task_id
    assert second.get(timeout=PATIENCE) == 7
    assert values(rig, f"{key}:7") == [7]


def test_publishers_that_know_the_task_and_that_do_not_find_each_other(
    rig: Rig, client: Celery, key: str
) -> None:
    lock = {"key": key, "scope": "queued+running"}
    with busy(rig):
        known = rig.task("sent").delay(key, 1)
        by_name = rig.app.send_task("sent", [key, 2])
        unknown = send_task(client, "sent", [key, 3], lock=lock)
    assert {known.id, by_name.id, unknown.id} == {known.id}
    assert [each.deduplicated for each in (known, by_name, unknown)] == [False, True, True]
    assert unknown.get(timeout=PATIENCE) == 1
    assert values(rig, key) == [1]


def test_unknown_task_is_replaced_and_revoked_by_its_publisher(
    rig: Rig, client: Celery, key: str
) -> None:
    lock = {
        "key": key,
        "scope": "queued",
        "on_conflict": {"publish": "replace", "run": "requeue"},
    }
    with busy(rig):
        first, second = (send_task(client, "sent", [key, n], lock=lock) for n in (1, 2))
        assert first.state == "REVOKED"
        third = send_task(client, "sent", [f"{key}-b", 3], lock={**lock, "key": f"{key}-b"})
        rig.app.control.revoke(third.id)
        rig.wait_free(f"{key}-b (queued)")
    assert second.get(timeout=PATIENCE) == 2
    assert values(rig, key) == [2]


def test_retry_of_a_task_sent_by_name_keeps_its_lock(rig: Rig, client: Celery, key: str) -> None:
    lock = {"key": key, "scope": "queued+running"}
    first = send_task(client, "sent", [key, 1], {"do": "retry"}, lock=lock)
    rig.wait_started(first)
    second = send_task(client, "sent", [key, 2], lock=lock)
    assert (second.id, second.deduplicated) == (first.id, True)
    assert second.get(timeout=PATIENCE) == 1
    assert values(rig, key) == [1, 1]


# max_queued.


def several(number: int, publish: str, **options: Any) -> dict[str, Any]:
    sides = {"publish": publish, "run": "requeue"}
    return {"scope": "queued", "max_queued": number, "on_conflict": sides, **options}


def test_queue_has_room_for_so_many_and_the_next_call_raises_or_is_skipped(
    rig: Rig, key: str
) -> None:
    sent, lock = rig.task("sent"), several(3, "raise")
    with busy(rig):
        results = [sent.apply_async([key, n], lock=lock) for n in range(3)]
        assert [result.deduplicated for result in results] == [False] * 3
        with pytest.raises(AlreadyQueued, match=key):
            sent.apply_async([key, 3], lock=lock)
        skipped = sent.apply_async([key, 4], lock=several(3, "skip"))
        assert is_skipped(skipped.get())
        assert skipped.deduplicated
    assert sorted(result.get(timeout=PATIENCE) for result in results) == [0, 1, 2]
    assert sent.apply_async([key, 5], lock=lock).get(timeout=PATIENCE) == 5
    assert sorted(values(rig, key)) == [0, 1, 2, 5]
    rig.never_two_at_once()


def test_room_is_there_as_soon_as_a_message_starts(rig: Rig, key: str) -> None:
    """What runs is not in the queue."""
    sent, lock = rig.task("sent"), several(1, "raise")
    running = sent.apply_async([key, 1, key], lock=lock)
    rig.wait_started(running)
    queued = sent.apply_async([key, 2], lock=lock)
    with pytest.raises(AlreadyQueued):
        sent.apply_async([key, 3], lock=lock)
    rig.open(key)
    assert [each.get(timeout=PATIENCE) for each in (running, queued)] == [1, 2]


def test_messages_of_another_task_with_the_key_count_too(rig: Rig, key: str) -> None:
    lock = several(2, "raise")
    with busy(rig):
        results = [rig.task(name).apply_async([key], lock=lock) for name in ("sent", "also_sent")]
        for name in ("sent", "also_sent"):
            with pytest.raises(AlreadyQueued):
                rig.task(name).apply_async([key], lock=lock)
    for result in results:
        result.get(timeout=PATIENCE)


def test_publisher_waits_for_room_and_no_longer_than_it_may(rig: Rig, key: str) -> None:
    sent = rig.task("sent")
    with ThreadPoolExecutor(1) as pool:
        with busy(rig):
            sent.apply_async([key, 1], lock=several(1, "wait"))
            with pytest.raises(AlreadyQueued):
                sent.apply_async([key, 2], lock=several(1, "wait", wait=0.3))
            waits = pool.submit(sent.apply_async, [key, 3], lock=several(1, "wait", wait=PATIENCE))
            wait_until(lambda: rig.locks.info(f"{key} (queued)").waiters, PATIENCE, what="a waiter")
            assert not waits.done()
        assert waits.result(PATIENCE).get(timeout=PATIENCE) == 3
    assert values(rig, key) == [1, 3]


def test_queue_is_never_longer_under_load_and_nothing_is_lost(rig: Rig, key: str) -> None:
    """Four publishers send faster than the worker works; they are slowed down, not refused."""
    sent, lock, seen, over = rig.task("sent"), several(4, "wait"), [], threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append(len(rig.locks.holders(f"{key} (queued)")))

    def publish(value: int) -> Any:
        return sent.apply_async([key, value], lock=lock)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(publish, range(40)))
    finally:
        over.set()
        watcher.join()
    assert sorted(result.get(timeout=PATIENCE) for result in results) == list(range(40))
    assert max(seen) == 4
    assert sorted(values(rig, key)) == list(range(40))


def test_members_of_a_canvas_are_all_published(rig: Rig, key: str) -> None:
    members = [rig.task("sent").si(key, n).set(lock=several(2, "wait")) for n in range(4)]
    assert group(members, app=rig.app).apply_async().get(timeout=PATIENCE) == [0, 1, 2, 3]


def test_task_that_waits_for_room_that_its_own_end_makes_is_told_so(rig: Rig, key: str) -> None:
    """It would occupy its slot until its patience ends."""
    with pytest.raises(LockConflict, match=key):
        rig.task("sends_itself").delay(key).get(timeout=PATIENCE)
