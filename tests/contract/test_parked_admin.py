"""What operators see of parked messages, and how they remove them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Holder, Locks, admin
from celery_locks.admin.metric_sums import read_tallies
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.parking import ParkCommands
from celery_locks.types import LockSpec
from tests.contract.backends import Backend
from tests.support.parked import park


def wait_as_process(locks: Locks, name: str, token: str, task: str = "bill") -> None:
    locks.perform(locks.commands.acquire(LockSpec(name), token, Holder(task=task), alive=60))


def ids(purged: Any) -> list[str]:
    return [message.holder.task_id for message in purged.messages]


def test_parked_message_is_told_from_a_process_that_waits(locks: Locks) -> None:
    assert locks.acquire("a")
    assert park(locks, "a", "one / ä") == 1
    wait_as_process(locks, "a", "process")
    info = locks.info("a")
    assert info
    assert [waiter.is_parked for waiter in info.waiters] == [True, False]
    assert [waiter.task_id for waiter in info.waiters] == ["one / ä", None]
    assert (info.parked, info.waiting) == (1, 2)
    assert info.oldest_parked == info.waiters[0].acquired_at
    assert info.as_dict()["parked"] == 1
    assert info.waiters[0].as_dict()["parked"] is True
    assert "parked" not in info.waiters[1].as_dict()


def test_woken_message_is_a_queued_holder_and_not_parked(locks: Locks) -> None:
    lease = locks.acquire("a")
    assert lease
    park(locks, "a", "one")
    lease.release()
    info = locks.info("a")
    assert info
    assert [(it.task_id, it.is_queued, it.is_parked) for it in info.holders] == [
        ("one", True, False)
    ]
    assert info.parked == 0
    assert info.oldest_parked is None


@pytest.mark.parametrize(("before", "parked", "after"), [(0, 150, 0), (3, 260, 2), (100, 120, 0)])
def test_parked_messages_behind_the_first_hundred_are_counted(
    locks: Locks, before: int, parked: int, after: int
) -> None:
    """The number on the page is that of the whole queue; processes do not count."""
    assert locks.acquire("a")
    for number in range(before):
        wait_as_process(locks, "a", f"early-{number}")
    for number in range(parked):
        park(locks, "a", f"t{number}")
    for number in range(after):
        wait_as_process(locks, "a", f"late-{number}")
    info = locks.info("a")
    assert info
    assert (info.parked, len(info.waiters)) == (parked, 100)
    tally = read_tallies(locks)["bill" if before < 100 else ""]
    assert tally.parked == parked
    if before < 100:
        assert tally.waiting == before + after


def test_list_finds_locks_with_parked_messages(locks: Locks) -> None:
    for name in ("a", "b"):
        assert locks.acquire(name)
    park(locks, "a", "one")
    wait_as_process(locks, "b", "process")
    assert [lock.name for lock in admin.list_locks(locks, state="parked")] == ["a"]
    assert {lock.name for lock in admin.list_locks(locks, state="waiting")} == {"a", "b"}


def test_tally_has_depth_and_age_of_parked_messages(locks: Locks, backend: Backend) -> None:
    assert locks.acquire("a")
    park(locks, "a", "one")
    park(locks, "a", "two", task="mail")
    key, token = backend.key("records", "a"), reservation_token("one", parked=True)
    fence, alive_until, rest = backend.raw.hget(key, token).split(b" ", 2)
    backend.raw.hset(key, token, b"%b %d %b" % (fence, int(alive_until) - 90_000, rest))
    info = locks.info("a")
    assert info
    assert info.oldest_parked
    assert 90 <= info.as_of - info.oldest_parked < 150
    tallies = read_tallies(locks)
    assert (tallies["bill"].parked, tallies["mail"].parked) == (1, 1)
    assert 90 <= tallies["bill"].oldest_parked < 150
    assert tallies["mail"].oldest_parked < 60
    assert tallies["bill"].waiting == 0, "it occupies no process"


def test_age_of_a_parked_message_does_not_depend_on_its_ticket(
    locks: Locks, backend: Backend
) -> None:
    """A message that comes first again, or later in turn, has a ticket of another time."""
    assert locks.acquire("a")
    park(locks, "a", "one")
    key, token = backend.key("q:", "a"), reservation_token("one", parked=True)
    for ticket in (1.0, 4e15):
        backend.raw.zadd(key, {token: ticket})
        info = locks.info("a")
        assert info
        assert info.oldest_parked
        assert 0 <= info.as_of - info.oldest_parked < 60
        assert read_tallies(locks)["bill"].oldest_parked < 60


def test_purge_removes_one_message_and_logs_who_and_why(locks: Locks, backend: Backend) -> None:
    lease = locks.acquire("a")
    assert lease
    for task_id in ("one", "two", "three"):
        park(locks, "a", task_id, message=f'{{"of": "{task_id}"}}')
    purged = admin.purge(locks, "a", task_id="two", reason="wrong tenant", by="ann")
    assert [(it.holder.task_id, it.message) for it in purged.messages] == [("two", '{"of": "two"}')]
    [entry] = admin.history(locks, "a", only_actions=True)
    assert (entry.act, entry.by, entry.why, entry.count) == ("purge", "ann", "wrong tenant", 1)
    assert [holder.task_id for holder in entry.holders] == ["two"]
    assert "ann removed 1 parked message from the queue of 'a': task bill[two]" in (
        admin.describe_entry(entry)
    )
    info = locks.info("a")
    assert info
    assert [waiter.task_id for waiter in info.waiters] == ["one", "three"]
    lease.release()
    assert [holder.task_id for holder in locks.holders("a")] == ["one"]
    assert backend.raw.hlen(backend.key("parked", "a")) == 2


def test_purge_of_all_leaves_processes_in_the_queue(locks: Locks, backend: Backend) -> None:
    lease = locks.acquire("a")
    assert lease
    park(locks, "a", "one")
    wait_as_process(locks, "a", "process")
    park(locks, "a", "two")
    purged = admin.purge(locks, "a", reason="gone", by="ann")
    assert ids(purged) == ["one", "two"]
    info = locks.info("a")
    assert info
    assert [waiter.token for waiter in info.waiters] == ["process"]
    assert backend.raw.hlen(backend.key("parked", "a")) == 0
    [entry] = admin.history(locks, "a", only_actions=True)
    assert (entry.count, [holder.task_id for holder in entry.holders]) == (2, ["one", "two"])
    lease.release()
    assert [holder.token for holder in locks.holders("a")] == ["process"]


def test_purge_takes_many_in_batches_and_only_those_that_are_there(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are parked during a purge are not part of it, so that it ends."""
    monkeypatch.setattr("celery_locks.store.commands.parking.PURGE_BATCH", 4)
    assert locks.acquire("a")
    wait_as_process(locks, "a", "process")
    for number in range(10):
        park(locks, "a", f"t{number}")
    performed = locks.perform
    calls: list[Any] = []

    def perform(call: Any) -> Any:
        answer = performed(call)
        if call.script.name == "purge":
            calls.append(call)
            park(locks, "a", f"later-{len(calls)}") if len(calls) < 4 else None
        return answer

    monkeypatch.setattr(locks, "perform", perform)
    purged = admin.purge(locks, "a", reason="all", by="ann")
    assert ids(purged) == [f"t{number}" for number in range(10)]
    assert len(calls) == 3
    entries = admin.history(locks, "a", only_actions=True)
    assert [entry.count for entry in entries] == [3, 4, 3]
    info = locks.info("a")
    assert info
    assert info.parked == 3


def test_purge_ends_a_batch_early_if_its_messages_are_large(locks: Locks) -> None:
    assert locks.acquire("a")
    for number in range(3):
        park(locks, "a", f"t{number}", message="x" * 600_000)
    purged = admin.purge(locks, "a", reason="all", by="ann")
    assert ids(purged) == ["t0", "t1", "t2"]
    entries = admin.history(locks, "a", only_actions=True)
    assert [entry.count for entry in entries] == [1, 2]


def test_purge_that_is_sent_again_returns_the_same_messages(locks: Locks) -> None:
    """The reply may be lost; the messages must not be lost with it."""
    assert locks.acquire("a")
    park(locks, "a", "one")
    call = ParkCommands(locks.commands).purge("a", by="ann", why="all", request_id="r")
    first, second = locks.perform(call), locks.perform(call)
    assert first == second
    assert len(first.messages) == 1
    assert len(admin.history(locks, "a", only_actions=True)) == 1


def test_purge_of_nothing_is_not_logged(locks: Locks, backend: Backend) -> None:
    lease = locks.acquire("a")
    assert lease
    park(locks, "a", "one")
    lease.release()
    before = backend.content()
    for task_id in (None, "one", "unknown"):
        assert admin.purge(locks, "a", reason="all", by="ann", task_id=task_id).messages == ()
    assert backend.content() == before, "a message that was woken is not parked any more"
    assert admin.history(locks, "a", only_actions=True) == []


def test_purge_lets_the_next_waiter_in(locks: Locks) -> None:
    """A message that does not fit, at the head of the queue, keeps others out: until it is gone."""
    assert locks.acquire("s", limit=2)
    park(locks, "s", "one")  # limit 1
    wait = locks.commands.acquire(LockSpec("s", limit=2), "second", Holder(), alive=60)
    locks.perform(wait)
    assert len(locks.holders("s")) == 1
    admin.purge(locks, "s", reason="wrong limit", by="ann")
    assert "second" in {holder.token for holder in locks.holders("s")}


def test_why_says_the_position_of_a_parked_task_however_long_the_queue(locks: Locks) -> None:
    assert locks.acquire("a")
    for number in range(130):
        park(locks, "a", f"t{number}")
    assert any(
        sentence.startswith("Task t2 is parked for lock 'a': third in line of 130")
        for sentence in admin.why(locks, "t2").sentences
    )
    assert any("number 121 in line of 130" in it for it in admin.why(locks, "t120").sentences)
    assert any("130 parked messages" in it for it in admin.why(locks, "a").sentences)


def test_poll_tells_what_was_taken_before_and_not_confirmed(locks: Locks, backend: Backend) -> None:
    lease = locks.acquire("a")
    assert lease
    park(locks, "a", "one")
    lease.release()
    commands, root = ParkCommands(locks.commands), locks.commands.root("a")
    [first] = locks.perform(commands.poll(root)).messages
    assert not first.is_repeat
    assert locks.perform(commands.poll(root)).messages == []
    key = backend.key("due", "a")
    score = backend.raw.zscore(key, first.token)
    backend.raw.zadd(key, {first.token: score - 10_000})
    [second] = locks.perform(commands.poll(root)).messages
    assert second.is_repeat


def test_pause_of_a_lock_with_parked_messages_keeps_its_name(
    locks: Locks, backend: Backend
) -> None:
    lease = locks.acquire("a")
    assert lease
    for number in range(120):
        park(locks, "a", f"t{number}")
    admin.pause(locks, "a", reason="stop")
    admin.resume(locks, "a")
    lease.release()
    assert backend.raw.zscore(backend.key("index", "a"), "a") > 10**12 * 1.9


def test_name_does_not_stay_for_years_after_the_last_message_is_woken(
    locks: Locks, backend: Backend
) -> None:
    """If the woken message is lost, its lapsed reservation is cleaned up like any other."""
    lease = locks.acquire("a")
    assert lease
    park(locks, "a", "one")
    lease.release()
    commands, root = ParkCommands(locks.commands), locks.commands.root("a")
    locks.perform(commands.wake_waiters(root, ["a"]))
    [holder] = locks.holders("a")
    assert backend.raw.zscore(backend.key("index", "a"), "a") == round(holder.expires_at * 1000)
