"""Two releases on one broker and one lock server, as in every rolling upgrade.

Real publishers and real workers of both; ``tests/support/two_releases.py`` says how they differ.
``docs/project/message-header.md`` promises what is tested here.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_locks import Holder, LockUsageError
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.validation import QUEUED
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.redis_keys import keys_of_locks
from tests.support.two_releases import (
    NEW_FIELD,
    NEW_OPTION,
    NEW_RECORD_FIELD,
    Publisher,
    Releases,
)
from tests.support.waiting import wait_until
from tests.support.worker import Worker

_numbers = itertools.count()
BOTH_WAYS = pytest.mark.parametrize(("ours", "theirs"), [("current", "next"), ("next", "current")])
TRANSPORT = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
UPDATE = "update the workers before the publishers"


class World:
    """A server, and processes of every release on it, each started when it is first used."""

    def __init__(self, rig: Rig, releases: Releases) -> None:
        self.rig = rig
        self._releases = releases
        self._workers: dict[str, Worker] = {}
        self._publishers: dict[str, Publisher] = {}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        for publisher in self._publishers.values():
            publisher.close()

    def workers(self, *names: str) -> list[Worker]:
        """Running workers; each reads the queue that has the name of its release."""
        for name in names:
            if name not in self._workers:
                worker = self._workers[name] = self._releases.worker(name, self.rig.conf, name)
                worker.start()
        for name in names:
            self._workers[name].wait_ready()
        return [self._workers[name] for name in names]

    def stop(self, name: str) -> None:
        """Stop the worker of a release; it is started again when it is used."""
        self._workers.pop(name).stop()

    def publisher(self, name: str) -> Publisher:
        if name not in self._publishers:
            self._publishers[name] = Publisher(self._releases.path(name), self.rig.conf)
        return self._publishers[name]

    def send(self, publisher: str, queue: str, task: str, *args: Any, **options: Any) -> Any:
        """Publish from a process of that release; return the result."""
        sent = self.publisher(publisher).send(task, *args, queue=queue, **options)
        assert sent["release"] == publisher
        return self.result(sent["id"])

    def result(self, task_id: str) -> Any:
        return AsyncResult(task_id, app=self.rig.app)

    def read(self, queue: str, *names: str) -> None:
        """Let exactly the workers of these releases read the queue."""
        self.workers(*names)
        control = self.rig.app.control
        for name in [name for name, worker in self._workers.items() if worker.is_running]:
            change = control.add_consumer if name in names else control.cancel_consumer
            replies = change(queue, destination=[f"{name}@test"], reply=True, timeout=PATIENCE)
            assert "ok" in replies[0][f"{name}@test"]

    def releases_of(self, task_id: str) -> list[str]:
        """The releases that ran this task, one for each attempt."""
        return [entry["release"] for entry in self.rig.starts(task_id)]

    def wait_requeued(self, key: str, release: str) -> None:
        def requeued() -> bool:
            return release in [entry["release"] for entry in self.rig.events("requeued", key)]

        wait_until(requeued, PATIENCE, what=f"{release} to requeue the message for {key}")

    def wait_nothing_left(self) -> None:
        """No lock, no reservation, no message: whatever came from the other release has ended."""

        def left() -> list[str]:
            keys = keys_of_locks(self.rig.redis.keys("celery-locks:*"))
            return [key for key in keys if "}:e:" not in key]

        wait_until(lambda: not left(), PATIENCE, what="all locks to be released")
        wait_until(lambda: not self.rig.redis.hlen("unacked"), PATIENCE, what="all to be acked")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def world(releases: Releases) -> Iterator[World]:
    with fresh_rig() as rig:
        world = World(rig, releases)
        try:
            yield world
        finally:
            world.close()


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").wait_nothing_left()


# A message of one release in a worker of the other.


def test_message_of_the_next_release_runs_under_its_lock(world: World, key: str) -> None:
    """Publishers may be updated first: what is new is ignored with a warning in the log."""
    [worker] = world.workers("current")
    sent = world.send("next", "current", "work", key, lock={"ttl": 7})
    assert sent.get(timeout=PATIENCE) == key
    [start] = world.rig.starts(sent.id)
    assert (start["release"], start["lock"]) == ("current", key)
    assert f"'{NEW_FIELD}'" in worker.log()
    assert f"'{NEW_OPTION}'" in worker.log()


def test_message_of_this_release_runs_in_a_worker_of_the_next(world: World, key: str) -> None:
    """What the newer release knows and the message does not have is no error."""
    [worker] = world.workers("next")
    sent = world.send("current", "next", "work", key, lock={"ttl": 7})
    assert sent.get(timeout=PATIENCE) == key
    [start] = world.rig.starts(sent.id)
    assert (start["release"], start["lock"]) == ("next", key)
    assert "does not know" not in worker.log()


def test_message_of_the_previous_release_runs_with_its_reservation(world: World, key: str) -> None:
    """Messages in the queue are older than the workers that come up after the upgrade."""
    [worker] = world.workers("current")
    first = world.send("previous", "parked", "one_more", key, lock={"ttl": 7})
    again = world.publisher("current").send("one_more", key, queue="parked")
    assert (again["id"], again["deduplicated"]) == (first.id, True)
    world.read("parked", "current")
    assert first.get(timeout=PATIENCE) == 0
    assert world.releases_of(first.id) == ["current"]
    world.rig.wait_free(key + QUEUED)
    assert "queued is" not in worker.log(), "the reservation was not understood"


# One lock between two releases.


def overlaps(world: World, key: str) -> int:
    return int(world.rig.redis.get(f"overlaps:{key}") or 0)


def test_lock_excludes_the_other_release(world: World, key: str) -> None:
    """Both wait in one queue and hand the lock over; the fences grow from start to start."""
    names = ["current", "next"]
    world.workers(*names)
    lock = {"on_conflict": "wait", "wait": 60}
    with world.rig.locks.hold(key):
        sent = [
            world.send(publisher, queue, "contend", key, lock=lock)
            for _ in range(8)
            for publisher, queue in itertools.product(names, names)
        ]
        wait_until(lambda: len(waiters(world, key)) == 4, PATIENCE, what="all slots to wait")
        assert {waiter.worker for waiter in waiters(world, key)} == {"current@test", "next@test"}
    for result in sent:
        result.get(timeout=PATIENCE)
    starts = [entry for entry in world.rig.starts() if entry["lock"] == key]
    ran = [entry["release"] for entry in starts]
    assert (ran.count("current"), ran.count("next")) == (16, 16)
    assert overlaps(world, key) == 0
    fences = [entry["fence"] for entry in starts]
    assert fences == sorted(set(fences))


def waiters(world: World, key: str) -> tuple[Holder, ...]:
    info = world.rig.locks.info(key)
    return info.waiters if info else ()


def test_overlap_is_found_where_releases_share_no_lock(world: World, key: str) -> None:
    """The negative control: the same task in a release that has changed its redis keys."""
    world.workers("current", "moved")
    inside = world.send("current", "current", "contend", key, key)
    world.rig.wait_started(inside)
    world.send("current", "moved", "contend", key).get(timeout=PATIENCE)
    world.rig.open(key)
    inside.get(timeout=PATIENCE)
    assert overlaps(world, key) == 1


def test_holder_of_the_next_release_is_known_to_this_one(world: World, key: str) -> None:
    """A record has a field more: operators of this release still see who holds the lock."""
    world.workers("next")
    sent = world.send("current", "next", "work", key, key)
    world.rig.wait_started(sent)
    [holder] = world.rig.locks.holders(key)
    assert (holder.task_id, holder.task, holder.worker) == (sent.id, "work", "next@test")
    records = world.rig.redis.hvals("celery-locks:{0}:records")
    assert any(f'"{NEW_RECORD_FIELD}"'.encode() in record for record in records)
    world.rig.open(key)
    assert sent.get(timeout=PATIENCE) == key


def test_skipped_call_names_the_holder_of_the_other_release(world: World, key: str) -> None:
    """The record of one release is read by the scripts and the code of the other."""
    world.workers("current", "next")
    for number, (ours, theirs) in enumerate([("current", "next"), ("next", "current")]):
        name = f"{key}-{number}"
        holding = world.send(ours, ours, "work", name, name)
        world.rig.wait_started(holding)
        skipped = world.send(ours, theirs, "work", name).get(timeout=PATIENCE)
        assert skipped["skipped"] is True
        assert skipped["holder"]["task_id"] == holding.id
        world.rig.open(name)
        assert holding.get(timeout=PATIENCE) == name


# A message that goes to and fro.


@BOTH_WAYS
def test_retry_goes_back_and_forth(world: World, ours: str, theirs: str, key: str) -> None:
    """Each attempt takes the lock over from the one before, and none runs beside another."""
    world.workers(ours, theirs)
    queues = [theirs, ours, theirs]
    sent = world.send(ours, ours, "bounce", key, queues, lock={"ttl": 7})
    assert sent.get(timeout=PATIENCE) == queues
    assert world.releases_of(sent.id) == [ours, theirs, ours, theirs]
    assert [entry["ttl"] for entry in world.rig.starts(sent.id)] == [7] * 4
    world.rig.never_two_at_once(sent.id)


@BOTH_WAYS
def test_requeued_message_runs_in_the_other_release(
    world: World, ours: str, theirs: str, key: str
) -> None:
    """It was requeued by both, and the options of its call are still those it was sent with."""
    queue = f"relay-{key}"
    world.read(queue, ours)
    with world.rig.locks.hold(key):
        lock = {"on_conflict": "requeue", "ttl": 7}
        sent = world.send(ours, queue, "contend", key, lock=lock)
        world.wait_requeued(key, ours)
        world.read(queue, theirs)
        world.wait_requeued(key, theirs)
    sent.get(timeout=PATIENCE)
    assert [entry["ttl"] for entry in world.rig.starts(sent.id)] == [7]
    world.read(queue)


def test_requeued_message_has_nothing_that_this_release_does_not_know() -> None:
    """Of a field that only newer releases know, nothing is promised once an older one had it."""
    raw = {"version": 1, "options": {"ttl": 7, NEW_OPTION: "strict"}, NEW_FIELD: "t-1"}
    written = LockHeader.read({HEADER: raw}).requeued(1.0).write({HEADER: raw, "other": 1})
    assert written == {
        "other": 1,
        HEADER: {"version": 1, "options": {"ttl": 7}, "since": 1.0, "times": 1},
    }


# A reservation.


@BOTH_WAYS
def test_reservation_is_seen_and_released_by_the_other_release(
    world: World, ours: str, theirs: str, key: str
) -> None:
    """One publishes, the other asks, finds the duplicate and runs the message."""
    queue = f"parked-{key}"
    world.workers(ours, theirs)
    sent = world.send(ours, queue, "sent", key, "value", key)
    assert world.publisher(theirs).pending("sent", key) == "queued"
    again = world.publisher(theirs).send("sent", key, "other", queue=queue)
    assert (again["id"], again["deduplicated"]) == (sent.id, True)
    world.read(queue, theirs)
    world.rig.wait_started(sent)
    assert world.publisher(ours).pending("sent", key) == "running"
    world.rig.open(key)
    assert sent.get(timeout=PATIENCE) == "value"
    world.rig.wait_free(key)
    assert world.publisher(ours).pending("sent", key) is None
    assert world.releases_of(sent.id) == [theirs]


@BOTH_WAYS
def test_reservation_of_a_revoked_message_is_released_by_the_other_release(
    world: World, ours: str, theirs: str, key: str
) -> None:
    """The token is made of the task's id in every release."""
    world.workers(theirs)
    sent = world.send(ours, "nobody reads it", "sent", key)
    assert world.rig.locks.holders(key)
    world.rig.app.control.revoke(sent.id, destination=[f"{theirs}@test"])
    world.rig.wait_free(key)


# A parked message.


@BOTH_WAYS
def test_message_parked_by_one_release_is_woken_and_run_by_the_other(
    world: World, ours: str, theirs: str, key: str
) -> None:
    """A rolling upgrade stops the workers of one release while messages are parked."""
    queue = f"park-{key}"
    world.read(queue, ours)
    with world.rig.locks.hold(key):
        lock = {"on_conflict": "park", "by_priority": True, "ttl": 7}
        sent = [world.send(ours, queue, "contend", key, lock=lock, priority=it) for it in (6, 0)]
        wait_until(lambda: len(waiters(world, key)) == 2, PATIENCE, what="two parked messages")
        world.rig.wait_event("parked", key, times=2)
        [parked_by] = {entry["release"] for entry in world.rig.events("parked", key)}
        assert parked_by == ours
        world.stop(ours)
        world.read(queue, theirs)
    for result in sent:
        result.get(timeout=3 * PATIENCE)
        assert world.releases_of(result.id) == [theirs]
    starts = [entry for entry in world.rig.starts() if entry["lock"] == key]
    assert [entry["id"] for entry in starts] == [sent[1].id, sent[0].id], "0 comes first in Redis"
    assert [entry["ttl"] for entry in starts] == [7, 7]
    assert overlaps(world, key) == 0
    world.read(queue)


@BOTH_WAYS
def test_call_parked_by_one_release_is_revoked_in_the_other(
    world: World, ours: str, theirs: str, key: str
) -> None:
    """The token of a parked message is made of the task's id in every release."""
    world.workers(theirs)
    with world.rig.locks.hold(key):
        lock = {"on_conflict": "park", "scope": "queued+running"}
        sent = world.send(ours, theirs, "contend", key, lock=lock)
        assert [waiter.task_id for waiter in waiters(world, key)] == [sent.id]
        world.rig.app.control.revoke(sent.id, destination=[f"{theirs}@test"])
        with pytest.raises(TaskRevokedError):
            sent.get(timeout=3 * PATIENCE)
        wait_until(lambda: not waiters(world, key), PATIENCE, what="it to leave the queue")
    assert not world.releases_of(sent.id)


# The death of one of them.


@BOTH_WAYS
def test_lock_of_a_killed_worker_is_taken_over_by_the_other_release(
    releases: Releases, ours: str, theirs: str, key: str
) -> None:
    """Of kill -9 for the whole machine: who waits gets the lock, and the message runs again."""
    with fresh_rig(broker_transport_options={**TRANSPORT, "visibility_timeout": 4}) as rig:
        world = World(rig, releases)
        try:
            [killed, _] = world.workers(ours, theirs)
            held = world.send(theirs, ours, "late", key, key)
            first = rig.wait_started(held)
            lock = {"on_conflict": "wait", "wait": 60}
            waiting = world.send(ours, theirs, "work", key, lock=lock)
            wait_until(lambda: rig.locks.info(key).waiters, PATIENCE, what="a waiter")
            killed.signal_group(signal.SIGKILL)
            assert waiting.get(timeout=PATIENCE) == key
            [second] = rig.starts(waiting.id)
            assert (second["release"], second["fence"] > first["fence"]) == (theirs, True)
            rig.open(key)
            world.read(ours, theirs)  # the queue of the dead
            assert held.get(timeout=PATIENCE) == key
            assert world.releases_of(held.id) == [ours, theirs]
            world.wait_nothing_left()
        finally:
            world.close()


@BOTH_WAYS
def test_copy_in_the_other_release_is_dropped(
    releases: Releases, ours: str, theirs: str, key: str
) -> None:
    """The broker delivers a message again: the mark of the run that ended is the same for both."""
    conf = {"broker_transport_options": {**TRANSPORT, "visibility_timeout": 2}}
    with fresh_rig(**conf, locks_keep_invisible=False) as rig:
        world = World(rig, releases)
        try:
            world.workers(ours, theirs)
            sent = world.send(ours, ours, "late", key, key)
            rig.wait_started(sent)
            world.read(ours, theirs)
            world.wait_requeued(key, theirs)
            rig.open(key)
            assert sent.get(timeout=PATIENCE) == key
            dropped = f"{sent.id}] has run already: this copy is dropped"
            logs = world.workers(ours, theirs)
            wait_until(
                lambda: any(dropped in worker.log() for worker in logs) and is_drained(rig, ours),
                PATIENCE,
                what="the copies to be dropped",
            )
            assert world.releases_of(sent.id) == [ours]
            world.wait_nothing_left()
        finally:
            world.close()


def is_drained(rig: Rig, queue: str) -> bool:
    return rig.redis.llen(queue) + rig.redis.hlen("unacked") == 0


# A message that is not understood.


@pytest.mark.parametrize(("publisher", "worker"), [("raised", "current"), ("current", "previous")])
def test_message_of_an_incompatible_release_fails_with_advice(
    world: World, publisher: str, worker: str, key: str
) -> None:
    """Its result and the log of the worker say what to do; the reservation is free again."""
    [reader] = world.workers(worker)
    sent = world.send(publisher, worker, "sent", key, "value")
    with pytest.raises(LockUsageError, match=UPDATE):
        sent.get(timeout=PATIENCE)
    assert sent.state == "FAILURE"
    assert not world.releases_of(sent.id), "a task whose lock is not understood has run"
    error = f"Task sent[{sent.id}] raised unexpected: LockUsageError"
    wait_until(lambda: error in reader.log(), PATIENCE, what="the error in the log")
    [line] = [line for line in reader.log().splitlines() if error in line]
    assert UPDATE in line
    world.rig.wait_free(key)
    assert world.publisher(publisher).pending("sent", key) is None


def test_release_with_a_higher_version_understands_this_one(world: World, key: str) -> None:
    """Workers first: they have to know what the publishers of the release before still send."""
    [worker] = world.workers("raised")
    for publisher in ("previous", "current", "raised"):
        sent = world.send(publisher, "raised", "sent", f"{key}-{publisher}", publisher)
        assert sent.get(timeout=PATIENCE) == publisher
        assert world.releases_of(sent.id) == ["raised"]
    assert "does not know" not in worker.log()


def test_retry_of_an_incompatible_release_fails_with_advice(world: World, key: str) -> None:
    """A worker publishes too: one queue must not be read by workers of both for long."""
    world.workers("raised", "current")
    sent = world.send("current", "raised", "bounce", key, ["current"])
    with pytest.raises(LockUsageError, match=UPDATE):
        sent.get(timeout=PATIENCE)
    assert world.releases_of(sent.id) == ["raised"]
    world.rig.wait_free(key)


@pytest.mark.parametrize(("publisher", "worker"), [("raised", "current"), ("current", "previous")])
def test_message_without_a_header_runs_in_every_release(
    world: World, publisher: str, worker: str, key: str
) -> None:
    """Most messages have none: a raised version concerns only the others."""
    world.workers(worker)
    assert world.send(publisher, worker, "work", key).get(timeout=PATIENCE) == key
