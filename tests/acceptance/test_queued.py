"""Locks from publish time, with a real worker and broker.

After every test the store holds nothing but the fence and done marks: whatever became of a message,
its lock is not left behind. Messages are held up by a worker whose slots are taken, or in a queue
that nobody reads.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu.exceptions import OperationalError

from celery_locks import AlreadyQueued, Holder, LockConflict, LockUnavailable
from celery_locks.core.renewer import renewer
from celery_locks.integration import publishing
from celery_locks.store.commands.locks import AcquireExtras, reservation_token
from celery_locks.types import LockSpec
from celery_locks.validation import QUEUED
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, Worker, fresh_rig, rig_on
from tests.support.client_app import close_client, open_client
from tests.support.proxy import Proxy
from tests.support.queued_calls import (
    NOBODYS,
    busy,
    hold_running,
    left,
    never_two_at_once,
    numbers,
    starts_under,
    values,
    wait_nothing_left,
)
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until

# Celery's result backend uses what redis-py 8.1 calls deprecated, here in the caller's process.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker("-n", "one@%h"):
        yield rig


@pytest.fixture
def key() -> str:
    return f"key-{next(numbers)}"


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "rig" in request.fixturenames:
        wait_nothing_left(request.getfixturevalue("rig"))


# A second call while the first is pending.


def test_a_duplicate_while_queued_is_the_existing_one(rig: Rig, key: str) -> None:
    """The caller gets a result that will come, and can tell that it is another call's."""
    sent = rig.task("sent")
    with busy(rig):
        first = sent.delay(key, 1)
        second = sent.delay(key, 2)
        by_keyword = sent.apply_async(kwargs={"key": key})
        assert first.deduplicated is False
        assert second.deduplicated is True
        assert {second.id, by_keyword.id} == {first.id}
        assert sent.pending(key) == "queued"
    assert second.get(timeout=PATIENCE) == 1
    assert values(rig, key) == [1]


def test_a_duplicate_while_running_is_the_existing_one(rig: Rig, key: str) -> None:
    first = hold_running(rig, key)
    second = rig.task("sent").delay(key, "second")
    assert (second.id, second.deduplicated) == (first.id, True)
    assert rig.task("sent").pending(key) == "running"
    rig.open(key)
    assert second.get(timeout=PATIENCE) == "first"
    assert values(rig, key) == ["first"]


def test_after_the_end_the_next_call_runs(rig: Rig, key: str) -> None:
    """At once: the lock is free before the result is there."""
    sent = rig.task("sent")
    for value in range(5):
        result = sent.delay(key, value)
        assert result.deduplicated is False
        assert result.get(timeout=PATIENCE) == value
        assert sent.pending(key) is None
    assert values(rig, key) == [0, 1, 2, 3, 4]


def test_concurrent_publishes_give_one_run(rig: Rig, key: str) -> None:
    """80 calls from 8 threads."""
    results: list[Any] = []
    with busy(rig):
        _in_threads(8, lambda _: [results.append(rig.task("sent").delay(key)) for _ in range(10)])
    assert len(results) == 80
    assert len({result.id for result in results}) == 1
    assert [result.deduplicated for result in results].count(False) == 1
    results[0].get(timeout=PATIENCE)
    assert len(starts_under(rig, key)) == 1


def _in_threads(number: int, work: Callable[[int], Any]) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# The other answers at publish.


def test_raise_says_which_and_since_when(rig: Rig, key: str) -> None:
    first = hold_running(rig, key)
    with pytest.raises(AlreadyQueued) as raised:
        rig.task("sent").apply_async([key], lock={"on_conflict": {"publish": "raise"}})
    assert raised.value.task_id == first.id
    assert 0 < raised.value.age < PATIENCE
    rig.open(key)
    first.get(timeout=PATIENCE)


def test_allow_leaves_it_to_the_run(rig: Rig, key: str) -> None:
    first = hold_running(rig, key)
    second = rig.task("sent").apply_async([key], lock={"on_conflict": "allow"})
    assert second.get(timeout=PATIENCE)["holder"]["task_id"] == first.id
    rig.open(key)
    first.get(timeout=PATIENCE)


def test_both_sides_of_a_pair_are_heeded(rig: Rig, key: str) -> None:
    lock = {"on_conflict": {"publish": "allow", "run": "raise"}}
    first = hold_running(rig, key)
    with pytest.raises(LockConflict):
        rig.task("sent").apply_async([key], lock=lock).get(timeout=PATIENCE)
    rig.open(key)
    first.get(timeout=PATIENCE)


REPLACE = {"on_conflict": {"publish": "replace", "run": "requeue"}}


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_replace_runs_the_new_arguments_once(rig: Rig, key: str, scope: str) -> None:
    """The ones taken out are told revoked, each of them, and exactly one runs."""
    lock = {**REPLACE, "scope": scope}
    with busy(rig):
        results = [rig.task("sent").apply_async([key, n], lock=lock) for n in range(5)]
        for replaced in results[:-1]:
            with pytest.raises(TaskRevokedError):
                replaced.get(timeout=PATIENCE)
            assert replaced.state == "REVOKED"
    assert results[-1].get(timeout=PATIENCE) == 4
    wait_drained(rig)
    assert values(rig, key) == [4]


def test_replace_from_many_threads_runs_one(rig: Rig, key: str) -> None:
    """Those who replace each other agree on one, and no result hangs."""
    results: list[Any] = []

    def publish(thread: int) -> None:
        for n in range(5):
            results.append(rig.task("sent").apply_async([key, [thread, n]], lock=REPLACE))

    with busy(rig):
        _in_threads(6, publish)
        wait_until(
            lambda: sum(r.state == "REVOKED" for r in results) == len(results) - 1,
            PATIENCE,
            what="all but one to be revoked",
        )
    [survivor] = [result for result in results if result.state != "REVOKED"]
    value = survivor.get(timeout=PATIENCE)
    wait_drained(rig)
    assert values(rig, key) == [value]


def test_replace_races_with_the_start_and_loses_nothing(rig: Rig, key: str) -> None:
    """Published at all moments of the others' lives: what runs, runs in order and once; the last
    one runs last; every result comes."""
    lock, results = {**REPLACE, "scope": "queued"}, []
    for n in range(200):
        results.append(rig.task("sent").apply_async([key, n], lock=lock))
        time.sleep(0.004 * (n % 7))
    wait_until(lambda: all(r.ready() for r in results), PATIENCE, every=0.2, what="all results")
    wait_drained(rig)
    ran = values(rig, key)
    assert ran == sorted(set(ran))
    assert ran[-1] == 199
    assert [r.state for r in results].count("SUCCESS") == len(ran) > 1
    never_two_at_once(rig, key)


def test_replace_cannot_take_out_what_runs(rig: Rig, key: str) -> None:
    """It goes in beside, and its run waits for its turn: the change is not lost."""
    first = hold_running(rig, key)
    second = rig.task("sent").apply_async([key, "second"], lock=REPLACE)
    assert second.deduplicated is False
    rig.wait_event("requeued", key)
    rig.open(key)
    assert first.get(timeout=PATIENCE) == "first"
    assert second.get(timeout=PATIENCE) == "second"


def test_replace_leaves_alone_what_a_canvas_waits_for(rig: Rig, key: str) -> None:
    with busy(rig):
        waited_for = chain(rig.task("sent").si(key, 1), rig.task("echo").s()).apply_async()
        second = rig.task("sent").apply_async([key, 2], lock=REPLACE)
    assert waited_for.get(timeout=PATIENCE) == 1
    assert second.get(timeout=PATIENCE) == 2


def test_a_replacement_that_died_before_it_was_sent_loses_nothing(rig: Rig, key: str) -> None:
    """It has the reservation and no message: the first is requeued until it may run."""
    with busy(rig):
        first = rig.task("sent").apply_async([key, "first"], lock={"scope": "queued+running"})
        holder = Holder(task_id="never sent", task="sent", retries=-1)
        call = rig.locks.commands.acquire(
            LockSpec(key, 2.0),
            "q-never",
            holder,
            extras=AcquireExtras(replace=reservation_token(first.id)),
        )
        assert rig.locks.perform(call)
    rig.wait_event("requeued", key)
    assert first.get(timeout=PATIENCE) == "first"


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_a_publisher_that_died_after_it_sent_a_replacement_leaves_one_run(
    rig: Rig, key: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the new message marks it then: the lock server knows which one it replaced."""
    lock = {**REPLACE, "scope": scope}
    with busy(rig):
        first = rig.task("sent").apply_async([key, "first"], lock=lock)
        monkeypatch.setattr(publishing.Publication, "_mark_replaced", lambda *_: None)
        second = rig.task("sent").apply_async([key, "second"], lock=lock)
    assert second.get(timeout=PATIENCE) == "second"
    with pytest.raises(TaskRevokedError):
        first.get(timeout=PATIENCE)
    assert values(rig, key) == ["second"]


def wait_drained(rig: Rig) -> None:
    def drained() -> bool:
        return rig.redis.llen("celery") + rig.redis.hlen("unacked") == 0

    wait_until(drained, PATIENCE, every=0.05, what="the queue to be empty")


def test_another_task_with_the_same_key_is_no_duplicate(rig: Rig, key: str) -> None:
    """It has another job to do: its result is its own, and the run keeps them apart."""
    first = hold_running(rig, key)
    lock = {"on_conflict": {"run": "requeue"}}
    other = rig.task("also_sent").apply_async([key], lock=lock)
    assert (other.deduplicated, other.id != first.id) == (False, True)
    rig.wait_event("requeued", key)
    rig.open(key)
    assert other.get(timeout=PATIENCE) == "also"
    never_two_at_once(rig, key)


def test_a_callback_is_not_lost_with_a_duplicate(rig: Rig, key: str) -> None:
    """``link`` belongs to this call: it is published, and its run says what became of it."""
    first = hold_running(rig, key)
    lock = {"on_conflict": {"run": "requeue"}}
    callback = rig.task("sent").si(f"{key}-callback", "called back")
    rig.task("sent").apply_async([key, "second"], link=callback, lock=lock)
    rig.open(key)
    first.get(timeout=PATIENCE)
    wait_until(lambda: starts_under(rig, f"{key}-callback"), PATIENCE, what="the callback")


# Given back at once.


@pytest.mark.parametrize("queue", ["celery", NOBODYS])
@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_a_revoke_gives_it_back_at_once(rig: Rig, key: str, scope: str, queue: str) -> None:
    """While the message is still where it was, received by a worker or not."""
    sent = rig.task("sent")
    with busy(rig):
        result = sent.apply_async([key], queue=queue, lock={"scope": scope})
        assert left(rig)
        result.revoke()
        wait_until(lambda: not rig.locks.holders(key), PATIENCE, what="it to be given back")
        wait_until(
            lambda: not rig.locks.holders(key + QUEUED), PATIENCE, what="its reservation too"
        )
        next_one = sent.apply_async([key, "next"], lock={"scope": scope})
        assert next_one.deduplicated is False
    assert next_one.get(timeout=PATIENCE) == "next"
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert values(rig, key) == ["next"]


def test_a_message_that_expires_gives_it_back(rig: Rig, key: str) -> None:
    """Also one that no worker has received: the lock ends with the message."""
    sent = rig.task("sent")
    with busy(rig):
        result = sent.apply_async([key], expires=1.2)
        wait_until(lambda: sent.pending(key) is None, PATIENCE, what="it to expire")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    moment = datetime.now(UTC) + timedelta(seconds=1.2)
    unread = sent.apply_async([key], queue=NOBODYS, expires=moment)
    assert sent.delay(key).id == unread.id
    wait_until(lambda: sent.pending(key) is None, PATIENCE, what="it to expire")
    assert sent.delay(key, "next").get(timeout=PATIENCE) == "next"


def test_a_countdown_longer_than_the_ttl_keeps_it(rig: Rig, key: str) -> None:
    """The pending lease is as long as the delay, whatever the ttl and the pending ttl are."""
    sent = rig.task("sent")
    lock = {"ttl": 1, "pending_ttl": 1}
    first = sent.apply_async([key, 1], countdown=3, lock=lock)
    began = time.monotonic()
    while time.monotonic() - began < 2.0:
        assert sent.apply_async([key, 2], lock=lock).id == first.id
        time.sleep(0.1)
    assert first.get(timeout=PATIENCE) == 1
    assert values(rig, key) == [1]


@pytest.mark.parametrize("do", ["ignore", "reject", "fail"])
@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_every_end_gives_it_back(rig: Rig, key: str, scope: str, do: str) -> None:
    first = rig.task("sent").apply_async([key], {"do": do}, lock={"scope": scope})
    rig.wait_started(first)
    wait_nothing_left(rig)
    assert rig.task("sent").delay(key, "next").get(timeout=PATIENCE) == "next"


@pytest.mark.parametrize("how", ["error", "ignore", "reject", "die"])
def test_a_task_that_never_gets_to_its_lock_gives_its_place_back(
    rig: Rig, key: str, how: str
) -> None:
    """``before_start`` fails: nobody asked for the lock of the run."""
    rig.task("refusing").delay(key, how)
    wait_nothing_left(rig)


def test_a_killed_process_gives_it_back(rig: Rig, key: str) -> None:
    first = hold_running(rig, key)
    os.kill(rig.wait_started(first)["pid"], signal.SIGKILL)
    rig.wait_free(key)
    with pytest.raises(Exception, match="SIGKILL"):
        first.get(timeout=PATIENCE)
    assert rig.task("sent").delay(key, "next").get(timeout=PATIENCE) == "next"


def test_a_retry_keeps_it(rig: Rig, key: str) -> None:
    """Between the attempts it is queued, and a second call is a duplicate; far beyond the ttl."""
    sent = rig.task("sent")
    first = sent.apply_async([key, 1], {"do": "retry"})
    wait_until(lambda: first.state == "RETRY", PATIENCE, what="the retry")
    assert sent.pending(key) == "queued"
    assert sent.delay(key, 2).id == first.id
    [holder] = rig.locks.holders(key)
    assert holder.expires_at - holder.acquired_at > 60
    assert first.get(timeout=PATIENCE) == 1
    assert [entry["retries"] for entry in starts_under(rig, key)] == [0, 1]


def test_a_revoked_retry_gives_it_back(rig: Rig, key: str) -> None:
    sent = rig.task("sent")
    first = sent.apply_async([key, 1], {"do": "retry"})
    wait_until(lambda: first.state == "RETRY", PATIENCE, what="the retry")
    first.revoke()
    rig.wait_free(key)
    assert sent.delay(key, "next").get(timeout=PATIENCE) == "next"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"args": ["key-x", 1, 2, 3, 4, 5]}, TypeError),
        ({"args": ["key-x", {1, object()}]}, Exception),
        ({"args": ["key-x"], "serializer": "no such"}, Exception),
        ({"args": [object()]}, ValueError),
    ],
    ids=["arguments", "encoding", "serializer", "key"],
)
def test_an_error_at_publish_gives_it_back(
    rig: Rig, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        rig.task("sent").apply_async(**options)
    assert left(rig) == []


def test_a_purge_is_healed_by_the_pending_ttl(rig: Rig, key: str) -> None:
    sent, lock = rig.task("sent"), {"pending_ttl": 1}
    purged = sent.apply_async([key], queue=NOBODYS, lock=lock)
    rig.redis.delete(NOBODYS)
    assert sent.apply_async([key], lock=lock).id == purged.id
    wait_until(lambda: sent.pending(key) is None, PATIENCE, what="the reservation to lapse")
    assert sent.delay(key, "next").get(timeout=PATIENCE) == "next"


# Arguments.


def test_a_mutated_argument_does_not_change_the_lock(rig: Rig, key: str) -> None:
    """Neither the task's change to its list nor the caller's after the call."""
    listed, items = rig.task("listed"), [key, 1]
    first = listed.delay(items, gate=key)
    items.append("the caller's")
    rig.wait_started(first)
    second = listed.delay([key, 1], gate=key)
    assert second.id == first.id
    rig.open(key)
    assert first.get(timeout=PATIENCE) == [key, 1, "more"]
    wait_nothing_left(rig)
    assert listed.delay([key, 1], gate=key).deduplicated is False


# Canvas.


def test_a_duplicate_in_a_chain_is_decided_by_the_run(rig: Rig, key: str) -> None:
    """The chain's ids are frozen: with requeue it goes on, with skip it fails, it never hangs."""
    first = hold_running(rig, key)
    sent, echo = rig.task("sent"), rig.task("echo")

    def in_chain(run: str) -> Any:
        middle = sent.si(key, "second").set(lock={"on_conflict": {"run": run}})
        return chain(echo.s(1), middle, echo.s()).apply_async()

    patient = in_chain("requeue")
    with pytest.raises(LockConflict):
        in_chain("skip").get(timeout=PATIENCE)
    rig.wait_event("requeued", key)
    rig.open(key)
    assert first.get(timeout=PATIENCE) == "first"
    assert patient.get(timeout=PATIENCE) == "second"


@pytest.mark.parametrize("publish", ["return_existing", "raise", "replace", "allow"])
def test_a_group_with_duplicates_answers_for_each(rig: Rig, key: str, publish: str) -> None:
    sent = rig.task("sent")
    lock = {"on_conflict": {"publish": publish, "run": "requeue"}}
    members = [sent.si(key, n).set(lock=lock) for n in range(2)]
    assert group(members, app=rig.app).apply_async().get(timeout=PATIENCE) == [0, 1]


def test_a_chord_with_a_duplicate_header_has_its_body_run(rig: Rig, key: str) -> None:
    sent = rig.task("sent")
    header = [sent.si(key, n, gate=key) for n in range(2)]
    result = chord(header, app=rig.app)(rig.task("gather").s())
    wait_until(lambda: starts_under(rig, key), PATIENCE, what="the first to start")
    wait_until(lambda: rig.events("skipped", key), PATIENCE, what="the other to be skipped")
    rig.open(key)
    ran, skipped = sorted(result.get(timeout=PATIENCE), key=lambda it: isinstance(it, dict))
    assert ran in (0, 1)
    assert skipped["skipped"] is True


def test_a_bad_key_in_a_chain_fails_its_own_link(rig: Rig, key: str) -> None:
    """Raised at publish it would come out of the link before, and the chain would hang."""
    bad = rig.task("sent").si(None).set(lock={"key": "bad:{key[0]}"})
    result = chain(rig.task("echo").s(1), bad).apply_async()
    with pytest.raises(ValueError, match="has no value"):
        result.get(timeout=PATIENCE)


# Waiting at the run.


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_a_waiting_run_gives_its_place_back(rig: Rig, key: str, scope: str) -> None:
    """Handed the lock in line, it has begun: its reservation is released."""
    lock = {"scope": scope, "on_conflict": {"run": "wait"}}
    with rig.locks.hold(key):
        first = rig.task("sent").apply_async([key, 1, key], lock=lock)
        wait_until(lambda: rig.locks.info(key).waiters, PATIENCE, what="it to stand in line")
    rig.wait_started(first)
    assert rig.locks.holders(key + QUEUED) == ()
    rig.open(key)
    assert first.get(timeout=PATIENCE) == 1


def test_nobody_waits_in_a_slot_for_a_message_that_needs_it(rig: Rig, key: str) -> None:
    """The delayed one holds the lock; those before it must not fill the worker until it is due."""
    sent, lock = rig.task("sent"), {"on_conflict": {"publish": "allow", "run": "wait"}}
    delayed = sent.apply_async([key, 0], countdown=2.5, lock=lock)
    others = [sent.apply_async([key, n], lock=lock) for n in (1, 2, 3)]
    assert delayed.get(timeout=10) == 0
    assert [other.get(timeout=PATIENCE) for other in others] == [1, 2, 3]


# Beside publish.


def test_send_task_does_not_bypass_the_run(rig: Rig, key: str) -> None:
    """Also from a process that does not know the task."""
    first = hold_running(rig, key)
    client = open_client(rig.server.url)
    by_name = client.send_task("sent", [key, "by name"])
    assert by_name.get(timeout=PATIENCE)["holder"]["task_id"] == first.id
    close_client(client)
    rig.open(key)
    first.get(timeout=PATIENCE)
    assert values(rig, key) == ["first"]


def test_pending_of_a_running_scope(rig: Rig, key: str) -> None:
    work = rig.task("work")
    assert work.pending(key) is None
    result = work.delay(key, key)
    rig.wait_started(result)
    assert work.pending(key) == "running"
    assert result.deduplicated is False
    rig.open(key)
    result.get(timeout=PATIENCE)


# One running and one queued; debounce.


def test_one_running_and_one_queued(rig: Rig, key: str) -> None:
    one_more = rig.task("one_more")
    first = one_more.delay(key, gate=key)
    rig.wait_started(first)
    second, third = one_more.delay(key), one_more.delay(key)
    assert (first.deduplicated, second.deduplicated, third.deduplicated) == (False, False, True)
    assert second.id == third.id != first.id
    rig.open(key)
    for result in (first, second):
        result.get(timeout=PATIENCE)
    assert len(starts_under(rig, key)) == 2
    never_two_at_once(rig, key)


def test_no_change_is_lost_under_load(rig: Rig, key: str) -> None:
    """Six threads change and publish at all moments of the runs: the last run saw the last one."""
    one_more, changes = rig.task("one_more"), 0

    def change(thread: int) -> None:
        for n in range(40):
            rig.redis.incr(f"version:{key}")
            one_more.delay(key, lasts=0.01)
            time.sleep(0.005 * ((thread + n) % 5))

    _in_threads(6, change)
    changes = int(rig.redis.get(f"version:{key}"))
    assert changes == 240
    wait_nothing_left(rig)
    assert int(rig.redis.get(f"seen:{key}")) == changes
    assert 1 < len(starts_under(rig, key)) < changes / 2
    never_two_at_once(rig, key)


def test_debounce_runs_once_with_the_last_arguments_at_the_end_of_the_window(
    rig: Rig, key: str
) -> None:
    """The window is the first call's: later calls do not push the run away."""
    settled = rig.task("settled")
    began, results = time.time(), []
    with measure_stalls() as stalled:
        while time.time() < began + 1.0:
            results.append(settled.delay(key, len(results)))
            time.sleep(0.15)
        assert results[-1].get(timeout=PATIENCE) == len(results) - 1
    [run] = starts_under(rig, key)
    assert 1.4 < run["at"] - began < 1.5 + 1.0 + stalled()
    for replaced in results[:-1]:
        with pytest.raises(TaskRevokedError):
            replaced.get(timeout=PATIENCE)


def test_debounce_during_a_run_is_not_lost(rig: Rig, key: str) -> None:
    settled = rig.task("settled")
    first = settled.delay(key, 1, gate=key)
    rig.wait_started(first)
    second = settled.delay(key, 2)
    rig.wait_event("requeued", key)
    rig.open(key)
    assert second.get(timeout=PATIENCE) == 2
    never_two_at_once(rig, key)


# Servers of their own: what it costs, what is down, and beat.


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_a_publish_costs_one_call_and_a_run_no_more_than_its_two(scope: str) -> None:
    long = {"locks_ttl": 600}  # a renewal would be one more call
    with EmbeddedServer() as locks, fresh_rig(locks_url=locks.url, **long) as rig, rig.worker():
        sent, client = rig.task("sent"), locks.client()
        sent.apply_async(["warm"], lock={"scope": scope}).get(timeout=PATIENCE)

        def calls() -> int:
            stats = client.info("commandstats")
            return sum(
                stats.get(f"cmdstat_{word}", {}).get("calls", 0) for word in ("evalsha", "eval")
            )

        before = calls()
        for n in range(10):
            sent.apply_async([f"key-{n}"], lock={"scope": scope}).get(timeout=PATIENCE)
        assert calls() - before == 30
        client.close()


def test_many_are_revoked_at_once() -> None:
    """More than one look at the store finds."""
    with fresh_rig() as rig, rig.worker(concurrency=1):
        results = [
            rig.task("sent").apply_async([f"key-{n}"], queue=NOBODYS, lock={"scope": "queued"})
            for n in range(600)
        ]
        assert left(rig)
        rig.app.control.revoke([result.id for result in results])
        wait_nothing_left(rig)


def test_a_broker_that_is_down_gives_it_back() -> None:
    """The lock server is another: the message cannot be sent, and nothing says it was."""
    with fresh_rig() as rig, Proxy(rig.server.host, rig.server.port) as broker:
        with rig_on(rig.server, broker_url=broker.url, locks_url=rig.server.url) as sender:
            sent = sender.task("sent")
            sent.apply_async(["warm"], lock={"enabled": False})
            broker.refuse()
            broker.cut()
            policy = {"max_retries": 1, "interval_start": 0}
            with pytest.raises(OperationalError):
                sent.apply_async(["key"], retry_policy=policy)
            assert left(rig) == []
            with pytest.raises(OperationalError):
                sent.apply_async(["key"], retry_policy=policy, lock=REPLACE)
            broker.pass_through()
            rig.redis.delete("celery")
            first = sent.apply_async(["key"])
            assert first.deduplicated is False
        assert rig.redis.llen("celery") == 1


def test_a_replacement_that_cannot_be_sent_leaves_the_first() -> None:
    """Its reservation is gone for a moment, its job is not."""
    with fresh_rig() as rig, Proxy(rig.server.host, rig.server.port) as broker:
        first = rig.task("sent").apply_async(["key", "first"])
        with rig_on(rig.server, broker_url=broker.url, locks_url=rig.server.url) as sender:
            broker.refuse()
            with pytest.raises(OperationalError):
                sender.task("sent").apply_async(
                    ["key", "second"], retry_policy={"max_retries": 0}, lock=REPLACE
                )
        with rig.worker(concurrency=1):
            assert first.get(timeout=PATIENCE) == "first"
            wait_nothing_left(rig)
            assert values(rig, "key") == ["first"]


def test_a_lock_server_that_is_down_at_publish() -> None:
    """By default a message is sent all the same, and its run has its own say."""
    with fresh_rig() as rig, Proxy(rig.server.host, rig.server.port) as locks:
        with rig_on(rig.server, locks_url=locks.url) as sender:
            sent = sender.task("sent")
            locks.refuse()
            with pytest.raises(LockUnavailable):
                sent.apply_async(["key"], lock={"on_unavailable": "fail"})
            assert rig.redis.llen("celery") == 0
            for word in ("requeue", "run"):
                result = sent.apply_async(["key"], lock={"on_unavailable": word})
                assert result.deduplicated is False
            inside = chain(sent.si("other").set(lock={"on_unavailable": "fail"})).apply_async()
            locks.pass_through()
        with rig.worker(concurrency=1):
            inside.get(timeout=PATIENCE)
            wait_drained(rig)
            wait_nothing_left(rig)


def test_a_publish_without_an_answer_leaves_the_retry_its_reservation() -> None:
    """What it may have been granted is given back, again and again; not what came after it."""
    with fresh_rig() as rig, Proxy(rig.server.host, rig.server.port) as locks:
        with rig_on(rig.server, locks_url=locks.url) as sender:
            locks.drop_replies()
            lock = {"scope": "queued+running"}
            result = sender.task("again").apply_async(["key", 1, 600], lock=lock)
            locks.refuse()
            locks.cut()
            with rig.worker(concurrency=1):
                wait_until(lambda: result.state == "RETRY", PATIENCE, what="the first attempt")
                (reservation,) = rig.locks.holders("key")
                assert reservation.is_queued
                locks.pass_through()
                debt = renewer._pending_releases[reservation_token(result.id)]
                wait_until(lambda: not debt.trouble, PATIENCE, what="the publisher to give back")
                assert rig.locks.holders("key") == (reservation,)
                result.revoke()
                wait_nothing_left(rig)


def test_beat_with_an_interval_shorter_than_the_run(tmp_path: Any) -> None:
    """Every tick during a run is a duplicate: no backlog, one run after the other."""
    entry = {"task": "sent", "schedule": 0.2, "args": ["key"], "kwargs": {"gate": "beat"}}
    with fresh_rig(beat_schedule={"tick": entry}, beat_max_loop_interval=0.2) as rig:
        with rig.worker():
            schedule = ("-s", str(tmp_path / "schedule"), "--pidfile=")
            beat = Worker(rig.conf, schedule, program="beat")
            try:
                wait_until(lambda: beat.log.count("Sending due") > 8, PATIENCE, what="ticks")
                assert len(rig.starts()) == 1
                assert rig.redis.llen("celery") == 0
                rig.open("beat")
                wait_until(lambda: len(rig.starts()) > 3, PATIENCE, what="the next runs")
            finally:
                beat.stop()
            wait_drained(rig)
            wait_nothing_left(rig)
            never_two_at_once(rig, "key")
