"""Messages that are prepared, sent and committed, on every store: exactly one of two runs."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Holder, Locks, admin
from celery_locks.store.commands.locks import AcquireExtras, reservation_token
from celery_locks.store.commands.replies import Ended, PreparedMessage
from celery_locks.types import LockSpec
from celery_locks.validation import QUEUED
from tests.contract.backends import Backend
from tests.support.waiting import wait_until

NAME = "a" + QUEUED


@pytest.fixture
def locks(backend: Backend) -> Locks:
    return backend.locks()


def prepare(locks: Locks, job: str, wait: float = 10.0, name: str = NAME) -> PreparedMessage:
    found: PreparedMessage = locks.perform(
        locks.commands.prepare_message(name, job, wait, lifetime=60.0)
    )
    return found


def commit(
    locks: Locks, job: str, merged_with: str = "", arguments: str = "[]", name: str = NAME
) -> int:
    holder = Holder(task_id=job, task="bill", retries=-1)
    other = None
    if merged_with:
        other = Holder(token=reservation_token(merged_with), task_id=merged_with, retries=-1)
    call = locks.commands.commit_message(LockSpec(name, 60.0), holder, other, arguments)
    fence: int = locks.perform(call)
    return fence


def publish(locks: Locks, job: str, merged_with: str = "", arguments: str = "[]") -> int:
    prepare(locks, job)
    return commit(locks, job, merged_with, arguments)


def start(locks: Locks, job: str, name: str = "a") -> Any:
    extras = AcquireExtras(
        reject_if_ended=True, release_on_grant=(name + QUEUED, reservation_token(job))
    )
    holder = Holder(task_id=job, task="bill")
    return locks.perform(locks.commands.acquire(LockSpec(name), f"run-{job}", holder, extras))


def tokens(locks: Locks, name: str = NAME) -> list[str]:
    return [holder.token for holder in locks.holders(name)]


def test_a_committed_message_has_the_reservation_and_its_arguments(
    locks: Locks, backend: Backend
) -> None:
    assert prepare(locks, "one") == (None, "")
    assert commit(locks, "one", arguments='[["ü\n"], {}]') > 0
    assert tokens(locks) == [reservation_token("one")]
    found = prepare(locks, "two")
    assert found.arguments == '[["ü\n"], {}]'
    assert found.conflict is not None
    [holder] = found.conflict.holders
    assert (holder.task_id, holder.task, holder.attempt) == ("one", "bill", 0)
    assert 0 <= found.conflict.age < 30


@pytest.mark.parametrize("number", range(20))
def test_a_start_removes_the_arguments_too(locks: Locks, backend: Backend, number: int) -> None:
    """On a Cluster all keys must be on one shard, whatever the name."""
    name = f"lock-{number}"
    prepare(locks, "one", name=name + QUEUED)
    commit(locks, "one", name=name + QUEUED)
    assert start(locks, "one", name) > 0
    locks.perform(locks.commands.release(name, "run-one"))
    assert backend.keys() == {"fence"}


def test_the_merged_message_runs_and_the_other_never_does(locks: Locks) -> None:
    """And it keeps the time of the first, from which a window is counted."""
    publish(locks, "one", arguments="[1]")
    since = locks.holders(NAME)[0].acquired_at
    assert publish(locks, "two", "one", "[1, 2]") > 0
    assert tokens(locks) == [reservation_token("two")]
    assert locks.holders(NAME)[0].acquired_at == since
    assert prepare(locks, "three").arguments == "[1, 2]"
    assert start(locks, "one") == Ended(was_replaced=True)
    assert start(locks, "two") > 0


def test_of_two_that_merge_with_the_same_message_one_is_committed(locks: Locks) -> None:
    publish(locks, "one", arguments="[1]")
    prepare(locks, "two")
    prepare(locks, "three")
    assert commit(locks, "two", "one", "[1, 2]") > 0
    assert commit(locks, "three", "one", "[1, 3]") == 0
    assert start(locks, "three") == Ended(was_replaced=True)
    assert prepare(locks, "four").arguments == "[1, 2]"
    assert start(locks, "two") > 0


def test_of_two_first_calls_one_is_committed(locks: Locks) -> None:
    prepare(locks, "one")
    prepare(locks, "two")
    assert commit(locks, "one") > 0
    assert commit(locks, "two") == 0
    assert start(locks, "two") == Ended(was_replaced=True)
    assert start(locks, "one") > 0


def test_a_message_that_has_begun_is_not_merged(locks: Locks) -> None:
    """Its arguments run already; to send them again would run them twice."""
    publish(locks, "one", arguments="[1]")
    prepare(locks, "two")
    assert start(locks, "one") > 0
    assert commit(locks, "two", "one", "[1, 2]") == 0
    assert start(locks, "two") == Ended(was_replaced=True)
    assert prepare(locks, "three") == (None, "")


def test_a_message_waits_for_its_commit_and_then_runs(locks: Locks) -> None:
    prepare(locks, "one")
    assert start(locks, "one") == Ended(is_being_replaced=True)
    assert commit(locks, "one") > 0
    assert start(locks, "one") > 0


def test_a_message_whose_publisher_died_never_runs(locks: Locks) -> None:
    """Nor is it committed later, if the publisher was only slow: it has to start again."""
    publish(locks, "one", arguments="[1]")
    prepare(locks, "two", wait=0.2)
    wait_until(
        lambda: start(locks, "two") == Ended(was_replaced=True), 20, what="the wait to be over"
    )
    assert commit(locks, "two", "one", "[1, 2]") == 0
    assert tokens(locks) == [reservation_token("one")]
    assert start(locks, "one") > 0


def test_a_repeated_commit_gets_the_same_reply(locks: Locks) -> None:
    """Its reply was lost, and meanwhile the message has begun or was replaced."""
    fence = publish(locks, "one", arguments="[1]")
    assert start(locks, "one") > 0
    assert commit(locks, "one", arguments="[1]") == fence
    prepare(locks, "two")
    assert commit(locks, "two", "one") == 0
    assert commit(locks, "two", "one") == 0
    assert tokens(locks) == []


def test_a_commit_without_the_announcement_marks_the_message(
    locks: Locks, backend: Backend
) -> None:
    """The server lost its data in between: the call starts again, so this message must not run."""
    assert commit(locks, "one") == 0
    assert start(locks, "one") == Ended(was_replaced=True)
    assert tokens(locks) == []


def test_a_lapsed_reservation_is_not_merged(locks: Locks, backend: Backend) -> None:
    publish(locks, "one", arguments="[1]")
    backend.lapse(NAME, reservation_token("one"))
    assert prepare(locks, "two") == (None, "")
    assert commit(locks, "two") > 0
    assert tokens(locks) == [reservation_token("two")]


def test_arguments_belong_to_the_reservation_that_has_the_lock(locks: Locks) -> None:
    """After a forced release another message may have the lock, of which nothing is known."""
    publish(locks, "one", arguments="[1]")
    locks.perform(locks.commands.release(NAME, reservation_token("one")))
    other = Holder(task_id="other", task="bill", retries=-1)
    locks.perform(locks.commands.acquire(LockSpec(NAME, 60.0), reservation_token("other"), other))
    found = prepare(locks, "two")
    assert found.conflict is not None
    assert (found.conflict.holders[0].task_id, found.arguments) == ("other", "")


def test_pause_is_no_message_and_outlives_a_merge(locks: Locks) -> None:
    """An operator's marker beside the holders is neither the other message nor a lapsed one."""
    admin.pause(locks, NAME, reason="stop")
    assert prepare(locks, "one") == (None, "")
    assert commit(locks, "one") > 0
    assert publish(locks, "two", merged_with="one") > 0
    assert tokens(locks) == [reservation_token("two")]
    info = locks.info(NAME)
    assert info
    assert info.pause
