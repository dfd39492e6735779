"""Messages that are kept until they start (``keep_message.lua``), on every store."""

from __future__ import annotations

import time

import pytest

from celery_locks import Holder, Locks
from celery_locks.store.commands.kept_messages import KeptCommands, KeptMessage
from celery_locks.store.commands.locks import AcquireExtras, reservation_token
from celery_locks.types import LockSpec
from tests.contract.backends import Backend
from tests.support.parked_calls import ParkedCalls, parked_token
from tests.support.waiting import wait_until

JOB = "job-1"
TOKEN = reservation_token(JOB)
HOUR = 3600.0


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks()


@pytest.fixture
def commands(locks: Locks) -> KeptCommands:
    return KeptCommands(locks.commands)


def keep(locks: Locks, commands: KeptCommands) -> None:
    """Reserve the lock "a" for a message, and keep the message."""
    holder = Holder(task_id=JOB, task="bill", retries=-1)
    spec = LockSpec("a", HOUR, 1)
    assert isinstance(locks.perform(locks.commands.acquire(spec, TOKEN, holder)), int)
    assert locks.perform(commands.keep("a", TOKEN, "the message")) is True


def publish_earlier(backend: Backend) -> None:
    """Pretend that the message was published an hour ago."""
    key = backend.key("kept", "a")
    message = backend.raw.hget(key, TOKEN).split(b" ", 1)[1]
    backend.raw.hset(key, TOKEN, b"%d %s" % ((time.time() - HOUR) * 1000, message))


def scan(locks: Locks, commands: KeptCommands, older_than: float = 60.0) -> list[KeptMessage]:
    return locks.run(commands.scan(older_than))


def test_kept_message_is_found_once_it_is_old(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """A message that was just published is on its way, not lost."""
    keep(locks, commands)
    assert scan(locks, commands) == []
    publish_earlier(backend)
    [kept] = scan(locks, commands)
    assert (kept.name, kept.holder.task_id, kept.holder.token) == ("a", JOB, TOKEN)


def test_message_without_a_reservation_is_not_kept(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """The reservation may be released between the grant and the publish."""
    assert locks.perform(commands.keep("a", TOKEN, "the message")) is False
    assert not backend.raw.exists(backend.key("kept", "a"))


def test_lost_message_is_taken_by_one_worker(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """Two workers that find the same message lost must not both publish it."""
    keep(locks, commands)
    publish_earlier(backend)
    [kept] = scan(locks, commands)
    assert locks.perform(commands.recover(kept)) == "the message"
    assert locks.perform(commands.recover(kept)) == ""
    assert scan(locks, commands) == []


def test_taken_message_has_its_reservation_for_as_long_again(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """A message that is published again may wait in the queue as long as a new one."""
    keep(locks, commands)
    publish_earlier(backend)
    backend.raw.zadd(backend.key("h:a", "a"), {TOKEN: (time.time() + 60) * 1000})
    [kept] = scan(locks, commands)
    locks.perform(commands.recover(kept))
    [holder] = locks.holders("a")
    assert holder.expires_at > time.time() + HOUR - 60


def test_message_whose_reservation_ended_is_forgotten(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """A message that was revoked, has expired or was skipped must not come back."""
    keep(locks, commands)
    publish_earlier(backend)
    [kept] = scan(locks, commands)
    locks.perform(locks.commands.release("a", TOKEN))
    assert locks.perform(commands.recover(kept)) == ""
    assert scan(locks, commands) == []
    assert not backend.raw.exists(backend.key("kept", "a"))


def test_message_that_starts_is_forgotten(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """From its start on acks_late decides whether a job is repeated."""
    keep(locks, commands)
    run = locks.commands.acquire(
        LockSpec("a", 30, 1), "run", Holder(task_id=JOB, task="bill"), AcquireExtras(forget=TOKEN)
    )
    assert isinstance(locks.perform(run), int)
    assert not backend.raw.exists(backend.key("kept", "a"))


def test_run_that_finds_its_lock_busy_leaves_the_message_kept(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """A task that is requeued has not started, and its next message may be lost."""
    keep(locks, commands)
    locks.acquire("b")
    run = locks.commands.acquire(
        LockSpec("b", 30, 1), "run", Holder(task_id=JOB, task="bill"), AcquireExtras(forget=TOKEN)
    )
    assert not isinstance(locks.perform(run), int)
    assert backend.raw.hlen(backend.key("kept", "a")) == 1


def test_woken_message_is_kept_if_its_task_asks(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """Between its wake-up and its start a message is only with the broker."""
    calls = ParkedCalls(locks)
    calls.start("one")
    calls.start_or_park("two", message="the message")
    calls.end("one")
    due = calls.poll()
    token = parked_token("two")
    root = locks.commands.root("a")
    assert locks.perform(calls.commands.confirm(root, due.messages, {token})) == 1
    [kept] = scan(locks, commands, 0.0)
    assert locks.perform(commands.recover(kept)) == "the message"


def test_message_that_is_parked_again_is_not_taken_for_lost(
    backend: Backend, locks: Locks, commands: KeptCommands
) -> None:
    """It is on the lock server, in the queue of its lock."""
    calls = ParkedCalls(locks)
    calls.start("one")
    calls.start_or_park("two")
    calls.end("one")
    due = calls.poll()
    locks.perform(
        calls.commands.confirm(locks.commands.root("a"), due.messages, {parked_token("two")})
    )
    [found_earlier] = scan(locks, commands, 0.0)
    locks.perform(locks.commands.release("a", parked_token("two")))
    calls.start("three")
    calls.start_or_park("two")
    assert scan(locks, commands, 0.0) == []
    assert locks.perform(commands.recover(found_earlier)) == ""


def test_one_worker_searches_at_a_time(locks: Locks, commands: KeptCommands) -> None:
    """A search reads all queues and asks all workers."""
    assert locks.perform(commands.begin_search(HOUR)) is True
    assert locks.perform(commands.begin_search(HOUR)) is False
    locks.perform(commands.postpone_search(0.001))
    wait_until(lambda: locks.perform(commands.begin_search(HOUR)), what="the next search")
