"""The job of a worker that was killed: what ``locks sweep`` says of it, and ``sweep --restore``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_locks import admin
from celery_locks.admin.redelivery import JobSearch
from celery_locks.integration.broker_messages import RedisBroker, Unacked, open_broker
from tests.servers.fork_server import run_program
from tests.support.celery_app import CONF_VARIABLE
from tests.support.celery_worker import PATIENCE, ROOT, Rig, fresh_rig
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

PREFIX = "shop:1:"
CONF = {"broker_transport_options": {"global_keyprefix": PREFIX}}


def sweep(rig: Rig, *arguments: str) -> Any:
    """``celery -A proj locks sweep --json``."""
    command = ["-m", "celery", "-A", "tests.support.celery_app", "locks", "sweep"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), CONF_VARIABLE: json.dumps(rig.conf)}
    command += ["--json", "--timeout", "1", *arguments]
    done = run_program(command, env, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fates(answer: Any) -> dict[str, str]:
    return {job["task_id"]: job["fate"] for job in answer["jobs"]}


def sentence_of(answer: Any, result: Any) -> str:
    [job] = [job for job in answer["jobs"] if job["task_id"] == result.id]
    return str(job["sentence"])


@pytest.mark.timeout(240)
def test_the_job_of_a_killed_worker_is_restored_and_runs_once() -> None:
    """Else it waits for the visibility timeout, an hour by default, though its lock is free."""
    with fresh_rig(locks_ttl=40, **CONF) as rig:
        with rig.worker("-n", "dead@%h", "-Q", "celery,orders") as dead:
            late = rig.task("late").apply_async(["late", "gate"], queue="orders", priority=6)
            early = rig.task("work").delay("early", "gate")
            for result in (late, early):
                rig.wait_started(result)
            dead.kill()
        swept = sweep(rig, "--wait", "35")
        assert {one["name"] for one in swept["freed"]} == {"late", "early"}
        assert fates(swept) == {late.id: "returns", early.id: "lost"}
        assert re.search(r"in about 5\d min", sentence_of(swept, late))
        assert "`sweep --restore` delivers it now" in sentence_of(swept, late)
        assert "acknowledged before the task started" in sentence_of(swept, early)

        with rig.worker("-n", "alive@%h", "-Q", "celery,orders"):
            assert fates(sweep(rig, "--restore", "--dry-run")) == {late.id: "returns"}
            assert len(rig.starts(late.id)) == 1
            restored = sweep(rig, "--restore")
            assert fates(restored) == {late.id: "restored"}
            assert "is back in queue 'orders'" in sentence_of(restored, late)
            rig.wait_started(late, times=2)
            rig.open("gate")
            assert late.get(timeout=PATIENCE) == "late"
            wait_until(lambda: not unacked_tags(rig), PATIENCE, what="it to be acknowledged")
            assert len(rig.starts(late.id)) == 2, "the killed run, and one more"
            assert len(rig.starts(early.id)) == 1
            assert fates(sweep(rig, "--restore")) == {}


def unacked_tags(rig: Rig) -> list[bytes]:
    return list(rig.redis.hkeys(f"{PREFIX}unacked"))


def test_the_job_of_a_living_worker_is_left_alone() -> None:
    """Its lock may have lapsed while the lock server was away; the task runs all the same."""
    with fresh_rig(**CONF) as rig, rig.worker():
        result = rig.task("late").delay("key", "gate")
        rig.wait_started(result)
        [holder] = rig.locks.holders("key")
        before = rig.redis.hgetall(f"{PREFIX}unacked")
        search = JobSearch(rig.app, timeout=2.0, restore=True)
        [job] = search._of_redis([holder], [])
        assert job.fate == "taken"
        assert search._of_redis([], [holder]) == []
        assert rig.redis.hgetall(f"{PREFIX}unacked") == before
        rig.open("gate")
        assert result.get(timeout=PATIENCE) == "key"


def test_the_job_of_a_worker_that_was_started_again_is_restored() -> None:
    """Under the same name, as systemd does it: it answers, and its lock has lapsed by then."""
    with fresh_rig(locks_ttl=3, **CONF) as rig:
        with rig.worker("-n", "same@%h") as dead:
            result = rig.task("late").delay("key", "gate")
            rig.wait_started(result)
            dead.kill()
        with rig.worker("-n", "same@%h"), rig.locks.hold("key", wait=PATIENCE):
            why = admin.why(rig.locks, result.id, rig.app)
            assert why.is_known
            assert "It is delivered again in about 5" in why.sentences[0]
            swept = admin.sweep(rig.locks, rig.app, timeout=2.0, restore=True)
            assert [(job.holder.task_id, job.fate) for job in swept.jobs] == [
                (result.id, "restored")
            ]
            assert (swept.freed, swept.inconclusive) == ((), "")


@pytest.fixture
def quiet() -> Iterator[Rig]:
    """No worker; the test fetches the messages."""
    with fresh_rig(**CONF) as rig:
        yield rig


def fetch_all(rig: Rig, times: int) -> list[str]:
    """Send so many messages and take each out of the queue, unacknowledged; their ids."""
    ids = [rig.app.send_task("echo", [n], priority=n % 10).id for n in range(times)]
    deliver(rig, times)
    return ids


def deliver(rig: Rig, times: int) -> None:
    """As a worker does that dies at once: its connection is dropped, not closed."""
    connection = rig.app.connection_for_read()
    channel = connection.channel()
    channel.qos.restore_at_shutdown = False
    for _ in range(times):
        assert channel.basic_get("celery") is not None
    channel.qos._dirty.update(channel.qos._delivered)
    connection._close()


def messages_of(broker: RedisBroker, ids: list[str]) -> dict[str, Unacked]:
    return {task_id: one for task_id, [one] in broker.unacked(ids).items()}


def queued_ids(broker: RedisBroker) -> list[str]:
    return [message["headers"]["id"] for message in broker.messages(["celery"])]


def test_restoring_beside_kombu_puts_each_message_back_once(quiet: Rig) -> None:
    """The visibility timeout may come at this very moment; twice in the queue is run twice."""
    ids = fetch_all(quiet, 20)
    with open_broker(quiet.app, 5.0) as broker, quiet.app.connection_for_read() as connection:
        messages = messages_of(broker, ids)
        assert set(messages) == set(ids)
        channel = connection.channel()
        for task_id in ids[:10]:  # ours comes between the reading and the writing of kombu's
            with between(channel, lambda i=task_id: broker.restore(messages[i])) as done:
                channel.qos.restore_by_tag(messages[task_id].tag)
            assert done == [["celery"]]
        for task_id in ids[10:]:  # kombu's comes between the reading and the writing of ours
            channel.qos.restore_by_tag(messages[task_id].tag)
            assert broker.restore(messages[task_id]) == []
        assert sorted(queued_ids(broker)) == sorted(ids)
        assert unacked_tags(quiet) == []


@contextmanager
def between(channel: Any, act: Callable[[], list[str]]) -> Iterator[list[list[str]]]:
    """Does something once, after kombu has read a message and before it moves it."""
    done: list[list[str]] = []
    original = channel._do_restore_message

    def restore_message(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if not done:
            done.append(act())

    channel._do_restore_message = restore_message
    yield done
    channel._do_restore_message = original


def test_a_message_that_was_delivered_again_is_not_restored(quiet: Rig) -> None:
    """Some worker has it; the entry in the broker may look the same to the last byte."""
    [task_id] = fetch_all(quiet, 1)
    with open_broker(quiet.app, 5.0) as broker:
        first = messages_of(broker, [task_id])[task_id]
        assert broker.restore(first) == ["celery"]
        assert broker.restore(first) == [], "restored already"
        deliver(quiet, 1)
        second = messages_of(broker, [task_id])[task_id]
        assert broker.restore(second) == ["celery"]
        deliver(quiet, 1)
        third = messages_of(broker, [task_id])[task_id]
        assert (third.tag, third.entry) == (second.tag, second.entry)
        assert broker.restore(second) == []
        assert queued_ids(broker) == [task_id], "it is with the unacknowledged"
        assert len(unacked_tags(quiet)) == 1


@pytest.mark.timeout(240)
def test_the_job_is_restored_when_the_lock_has_just_lapsed() -> None:
    """Whoever reads "`sweep --restore` delivers it now" may type it after the ttl is over."""
    with fresh_rig(locks_ttl=6, **CONF) as rig:
        with rig.worker("-n", "dead@%h") as dead:
            late = rig.task("late").delay("late", "gate")
            rig.wait_started(late)
            dead.kill()
        rig.wait_free("late")
        assert fates(sweep(rig, "--restore")) == {late.id: "restored"}
        with rig.worker("-n", "alive@%h"):
            rig.open("gate")
            assert late.get(timeout=PATIENCE) == "late"
