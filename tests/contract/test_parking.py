"""Parked messages, on every store: none is lost, and none runs twice at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import Conflict, admin
from celery_locks.store.commands.parking import BATCH
from celery_locks.store.commands.replies import Ended, Parked
from tests.contract.backends import Backend
from tests.contract.test_overrides import lapse_overrides
from tests.contract.test_queue import in_line
from tests.support.parked_calls import WOKE, ParkedCalls, parked_token
from tests.support.waiting import wait_until


@pytest.fixture
def calls(backend: Backend) -> ParkedCalls:
    return ParkedCalls(backend.locks())


@pytest.fixture
def others(backend: Backend) -> ParkedCalls:
    """Return a second worker."""
    return ParkedCalls(backend.locks())


def tokens(*jobs: str) -> list[str]:
    return [parked_token(job) for job in jobs]


def make_due(backend: Backend, member: str, name: str = "a") -> None:
    """Pretend that the time of an entry in `due` has come."""
    key = backend.key("due", name)
    assert backend.raw.zscore(key, member) is not None, f"{member} is not in due"
    backend.raw.zadd(key, {member: (time.time() - 1) * 1000})


def assert_nothing_left(backend: Backend, calls: ParkedCalls, *names: str) -> None:
    """Expect no trace after a last look, except the marks that attempts have ended."""
    for name in names or ("a",):
        if backend.raw.zscore(backend.key("due", name), f"n{name}") is not None:
            make_due(backend, f"n{name}", name)
            due = calls.poll(name)
            assert (due.messages, due.names) == ([], [name])
            assert not calls.look_at(name)
    left = backend.keys() - {"fence", "log", "notices"}
    assert not {key for key in left if not key.startswith("e:")}


def test_parked_message_waits_until_the_release_wakes_it(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    assert calls.start_or_park("two") == Parked(1)
    assert calls.poll().messages == []
    assert calls.end("one") == WOKE
    assert calls.holding() == tokens("two")
    message = calls.take("two")
    assert message.message == "message 1 of two"
    assert calls.confirm(message) == 1
    assert isinstance(calls.start("two"), int)
    assert calls.holding() == ["run-two"]
    assert calls.end("two") == 1, "nobody is left to wake"
    assert_nothing_left(backend, calls)


def test_park_of_a_free_lock_is_a_grant(calls: ParkedCalls, backend: Backend) -> None:
    assert isinstance(calls.start_or_park("one"), int)
    calls.end("one")
    assert_nothing_left(backend, calls)


def test_due_message_that_no_longer_exists_is_forgotten(
    calls: ParkedCalls, backend: Backend
) -> None:
    """Else every worker would find it at every poll, for ever."""
    backend.raw.zadd(backend.key("due", "a"), {parked_token("gone"): 1})
    assert calls.poll().messages == []
    assert backend.raw.zcard(backend.key("due", "a")) == 0


def test_poll_says_that_more_is_due_than_it_took(calls: ParkedCalls, backend: Backend) -> None:
    """A worker polls again at once then; else the rest would wait for its next turn."""
    names = {f"n{number}": 1 for number in range(BATCH + 1)}
    backend.raw.zadd(backend.key("due", "a"), names)
    due = calls.poll()
    assert (len(due.names), due.next_in) == (BATCH, 0)
    assert len(calls.poll().names) == 1


def test_release_that_keeps_the_slot_does_not_touch_a_parked_message(
    calls: ParkedCalls, backend: Backend
) -> None:
    """The release is about an earlier reservation; the message keeps its place and its slot."""
    calls.start("one")
    calls.park("two")
    release = calls.locks.commands.release("a", parked_token("two"), keep_for=60)
    assert calls.locks.perform(release) == 0
    assert calls.end("one") == WOKE
    assert calls.holding() == tokens("two")


def test_park_is_idempotent(calls: ParkedCalls, backend: Backend) -> None:
    """A copy of the message, which the broker delivers again, keeps the place of the first."""
    calls.start("one")
    calls.park("two", "three")
    for token in ("", "run-copy"):
        assert calls.start_or_park("two", token=token) == Parked(1)
    assert calls.waiting() == tokens("two", "three")
    assert backend.raw.hlen(backend.key("parked", "a")) == 2


def test_copy_with_a_higher_limit_wakes_the_message_that_it_is_a_copy_of(
    calls: ParkedCalls, backend: Backend
) -> None:
    """Callers with different limits: a new release of the app raised the one of the task."""
    calls.start("one", limit=2)
    calls.park("two", limit=1)
    assert calls.start_or_park("two", limit=2) == Parked(1)
    assert calls.holding() == ["run-one", *tokens("two")]
    calls.take("two")


def test_parked_messages_and_blocking_waiters_are_served_in_their_order(
    calls: ParkedCalls, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    locks, waiting = backend.locks(), backend.api("sync")
    calls.start("one")
    calls.park("two")
    second = in_thread(waiting.acquire, "a", wait=60, ttl=60)
    in_line(backend.api("sync"), "a", 2)
    calls.park("four")
    assert calls.end("one") == WOKE
    assert calls.holding() == tokens("two")
    calls.wake("two")
    calls.start("two")
    calls.end("two")
    lease = second.result(timeout=30)
    assert calls.holding() == [lease.token]
    assert calls.waiting() == tokens("four")
    waiting.release(lease)
    assert [it.token for it in locks.holders("a")] == tokens("four")
    calls.wake("four")
    calls.start("four")
    calls.end("four")
    assert_nothing_left(backend, calls)


def test_new_caller_does_not_pass_parked_messages(calls: ParkedCalls, backend: Backend) -> None:
    """Also when the slot came free by a lapse, which nobody has noticed before."""
    calls.start("one")
    calls.park("two")
    backend.lapse("a", "run-one")
    assert isinstance(calls.start("new"), Conflict)
    assert calls.holding() == tokens("two")
    calls.take("two")


def test_semaphore_wakes_one_message_for_each_free_slot(
    calls: ParkedCalls, backend: Backend
) -> None:
    for job in ("one", "two"):
        calls.start(job, limit=2)
    calls.park("three", "four", "five", limit=2)
    calls.end("one")
    assert [it.token for it in calls.poll().messages] == tokens("three")
    calls.end("two")
    assert [it.token for it in calls.poll().messages] == tokens("four")
    assert calls.waiting() == tokens("five")
    assert sorted(calls.holding()) == sorted(tokens("three", "four"))


def test_force_release_wakes_the_first(calls: ParkedCalls, backend: Backend) -> None:
    calls.start("one")
    calls.park("two")
    admin.force_release(backend.locks(), "a")
    calls.wake("two")
    assert calls.holding() == tokens("two")


def test_force_release_of_a_woken_message_wakes_the_next_and_loses_none(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    admin.force_release(backend.locks(), "a")
    assert sorted(it.token for it in calls.poll().messages) == sorted(tokens("two", "three"))
    assert calls.start_or_park("two") == Parked(1)


def test_lapse_is_noticed_by_a_poll(calls: ParkedCalls, backend: Backend) -> None:
    """A parked message has no process that waits for the end of the holder's ttl."""
    calls.start("one")
    calls.park("two")
    backend.lapse("a", "run-one")
    make_due(backend, "na")
    assert calls.poll().names == ["a"]
    assert calls.poll().names == [], "another worker does not look too"
    assert calls.look_at("a") is True
    assert calls.look_at("a") is False
    calls.wake("two")


def test_poll_comes_back_when_the_first_holder_would_lapse(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one", ttl=2.0)
    calls.park("two")
    make_due(backend, "na")
    calls.poll()
    calls.look_at("a")
    score = backend.raw.zscore(backend.key("due", "a"), "na")
    assert score <= backend.raw.zscore(backend.key("h:", "a"), "run-one")


def test_raised_limit_wakes_the_first(calls: ParkedCalls, backend: Backend) -> None:
    calls.start("one")
    calls.park("two", "three")
    admin.set_limit(backend.locks(), "a", 2)
    calls.wake("two")
    assert calls.waiting() == tokens("three")


def test_pause_keeps_messages_parked_until_it_is_ended(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    calls.park("two")
    admin.pause(backend.locks(), "a")
    assert calls.end("one") == 1
    make_due(backend, "na")
    calls.poll()
    assert calls.look_at("a") is False
    assert (calls.holding(), calls.waiting()) == ([], tokens("two"))
    admin.resume(backend.locks(), "a")
    calls.wake("two")


def test_task_that_meets_a_paused_lock_is_parked(calls: ParkedCalls, backend: Backend) -> None:
    admin.pause(backend.locks(), "a")
    assert isinstance(calls.start("one"), Conflict)
    assert calls.start_or_park("one") == Parked(1)
    admin.resume(backend.locks(), "a")
    calls.wake("one")
    assert isinstance(calls.start("one"), int)


def test_pause_that_ends_by_itself_is_noticed_by_a_poll(
    calls: ParkedCalls, backend: Backend
) -> None:
    admin.pause(backend.locks(), "a", seconds=3600)
    calls.park("one")
    lapse_overrides(backend, "a")
    make_due(backend, "na")
    calls.poll()
    assert calls.look_at("a") is True
    calls.wake("one")


def test_pattern_keeps_messages_parked_and_its_end_wakes_them(
    calls: ParkedCalls, backend: Backend
) -> None:
    """The pause of a pattern reaches a lock that nobody used before."""
    locks = backend.locks()
    admin.pause(locks, "a*")
    calls.park("one", "two")
    make_due(backend, "na")
    calls.poll()
    assert calls.look_at("a") is False, "it is still paused"
    admin.resume(locks, "a*")
    assert isinstance(calls.start("new"), Conflict), "it came later than those that wait"
    calls.wake("one")
    assert calls.waiting() == tokens("two")


def test_woken_message_whose_lock_was_paused_comes_first_again(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    calls.wake("two")
    admin.pause(backend.locks(), "a")
    assert calls.start_or_park("two") == Parked(1)
    assert calls.waiting() == tokens("two", "three")
    admin.resume(backend.locks(), "a")
    calls.wake("two")


def test_poll_gives_a_message_to_one_worker_and_again_after_its_time(
    calls: ParkedCalls, others: ParkedCalls, backend: Backend
) -> None:
    """The first worker may have died before it published the message."""
    calls.start("one")
    calls.park("two")
    calls.end("one")
    first = calls.take("two")
    due = others.poll()
    assert due.messages == []
    assert due.next_in is not None
    assert 0 < due.next_in <= 5
    make_due(backend, parked_token("two"))
    assert others.take("two") == first
    assert others.confirm(first) == 1
    assert calls.confirm(first) == 0, "the first worker is late"
    assert others.poll().messages == []


def test_message_is_given_again_by_the_clock_of_the_server(
    calls: ParkedCalls, others: ParkedCalls
) -> None:
    calls.start("one")
    calls.park("two")
    calls.end("one")
    calls.take("two")
    wait_until(lambda: others.poll().messages, 30, what="the message to be due again")


def test_confirmation_of_an_earlier_publication_does_not_delete_a_message_that_is_parked_again(
    calls: ParkedCalls, backend: Backend
) -> None:
    """The message runs and is parked again before its publisher has confirmed it."""
    calls.start("one")
    calls.park("two")
    calls.end("one")
    published = calls.take("two")
    admin.pause(backend.locks(), "a")
    calls.park("two")
    assert calls.confirm(published) == 0
    admin.resume(backend.locks(), "a")
    again = calls.take("two")
    assert again.message == published.message
    assert calls.confirm(published) == 0, "nor after it was woken again"
    assert calls.confirm(again) == 1


def test_confirmation_of_an_earlier_attempt_does_not_delete_a_parked_retry(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    calls.park("two")
    calls.end("one")
    published = calls.take("two")
    calls.start("two")
    calls.end("two")
    calls.start("three")
    calls.park("two", attempt=2)
    assert calls.confirm(published) == 0
    calls.end("three")
    assert calls.take("two").message == "message 2 of two"


def test_unpark_deletes_a_parked_message(calls: ParkedCalls, backend: Backend) -> None:
    calls.start("one")
    calls.park("two", "three")
    assert calls.unpark("two", publish=False) == "message 1 of two"
    assert calls.unpark("two", publish=False) == ""
    assert calls.waiting() == tokens("three")
    calls.end("one")
    calls.wake("three")
    calls.start("three")
    calls.end("three")
    assert_nothing_left(backend, calls)


def test_unpark_to_publish_makes_it_due_without_its_lock(
    calls: ParkedCalls, backend: Backend
) -> None:
    """A revoked task: its message goes to a worker at once, which discards it."""
    calls.start("one")
    calls.park("two")
    for _ in range(2):
        calls.unpark("two", publish=True)
    assert calls.holding() == ["run-one"]
    calls.wake("two")
    calls.end("one")
    assert_nothing_left(backend, calls)


def test_unpark_of_a_woken_message_changes_nothing(calls: ParkedCalls) -> None:
    calls.start("one")
    calls.park("two")
    calls.end("one")
    assert calls.unpark("two", publish=False) == ""
    calls.wake("two")


def test_later_attempt_replaces_the_stored_message_and_an_earlier_one_does_not(
    calls: ParkedCalls,
) -> None:
    """The message of an attempt that has ended would be dropped, and the retry with it."""
    calls.start("one")
    calls.park("two", attempt=1)
    calls.park("two", attempt=2)
    calls.park("two", attempt=1)
    calls.end("one")
    assert calls.take("two").message == "message 2 of two"


def test_at_most_so_many_wait(calls: ParkedCalls) -> None:
    calls.most = 2
    calls.start("one")
    calls.park("two", "three")
    assert isinstance(calls.start_or_park("four"), Conflict)
    assert calls.start_or_park("two") == Parked(1), "it waits already"
    calls.end("one")
    assert calls.start_or_park("four") == Parked(2)


def test_repeated_call_whose_message_is_woken_already_runs_it(
    calls: ParkedCalls, backend: Backend
) -> None:
    """The reply that it is parked was lost. The published copy finds that the attempt has ended."""
    calls.start("one")
    calls.park("two")
    calls.end("one")
    assert isinstance(calls.start_or_park("two"), int)
    assert calls.holding() == ["run-two"]
    copy = calls.take("two")
    conflict = calls.start_or_park("two", token="run-copy")
    assert isinstance(conflict, Conflict)
    assert conflict.has_copy_of("two", 1)
    calls.confirm(copy)
    calls.end("two")
    assert isinstance(calls.start_or_park("two", token="run-copy"), Ended)
    assert_nothing_left(backend, calls)


def test_repeated_release_wakes_nobody_else(calls: ParkedCalls) -> None:
    """The reply of a release was lost: the poll of any worker finds the message."""
    calls.start("one")
    calls.park("two", "three")
    assert calls.end("one") == WOKE
    assert calls.end("one") == 0
    calls.wake("two")
    assert calls.waiting() == tokens("three")


def test_copy_of_a_parked_message_gets_no_slot_of_its_own(calls: ParkedCalls) -> None:
    for job in ("one", "two"):
        calls.start(job, limit=2)
    calls.park("three", limit=2)
    calls.end("one")
    assert isinstance(calls.start("three", limit=2), int)
    conflict = calls.start_or_park("three", limit=2, token="run-copy")
    assert isinstance(conflict, Conflict)
    calls.end("two")
    conflict = calls.start_or_park("three", limit=2, token="run-copy")
    assert isinstance(conflict, Conflict), "nor if a slot is free"
    assert calls.waiting() == []
    assert calls.holding() == ["run-three"]


def test_copy_of_a_woken_message_takes_over_its_slot(calls: ParkedCalls) -> None:
    """The broker delivered the first copy again: whichever comes first runs."""
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    assert isinstance(calls.start("two", token="run-copy"), int)
    assert calls.holding() == ["run-copy"]
    assert calls.waiting() == tokens("three")
    assert isinstance(calls.start("two"), Conflict)


def test_message_of_an_ended_attempt_is_not_parked(calls: ParkedCalls) -> None:
    calls.start("one")
    calls.end("one")
    calls.start("two")
    assert isinstance(calls.start_or_park("one"), Ended)
    assert calls.waiting() == []


def test_woken_message_that_comes_too_late_is_parked_again(
    calls: ParkedCalls, backend: Backend
) -> None:
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    calls.wake("two")
    backend.lapse("a", parked_token("two"))
    make_due(backend, "na")
    calls.poll()
    assert calls.look_at("a") is True
    calls.wake("three")
    assert calls.start_or_park("two") == Parked(1)
    calls.start("three")
    calls.end("three")
    calls.wake("two")
    calls.start("two")
    calls.end("two")
    assert_nothing_left(backend, calls)


def test_reservation_that_lapses_before_the_message_is_published_loses_nothing(
    calls: ParkedCalls, backend: Backend
) -> None:
    """No worker was there to publish it for a long time."""
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    backend.lapse("a", parked_token("two"))
    calls.look_at("a")
    assert {it.token for it in calls.poll().messages} == set(tokens("two", "three"))


def test_woken_reservation_lapses_by_the_clock_of_the_server(backend: Backend) -> None:
    calls = ParkedCalls(backend.locks(), lifetime=1.0)
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    wait_until(lambda: calls.look_at("a"), 30, what="the reservation to lapse")
    assert calls.holding() == tokens("three")


def test_release_of_an_earlier_reservation_leaves_a_message_that_is_parked_again(
    calls: ParkedCalls, backend: Backend
) -> None:
    """A copy is discarded by a worker, which releases what the copy had reserved."""
    calls.start("one")
    calls.park("two")
    calls.end("one")
    calls.wake("two")
    admin.pause(backend.locks(), "a")
    calls.park("two")
    for _ in range(2):
        assert calls.release(parked_token("two")) == 0
    admin.resume(backend.locks(), "a")
    calls.wake("two")
    assert calls.holding() == tokens("two")


def test_release_of_a_woken_reservation_wakes_the_next(calls: ParkedCalls) -> None:
    """A worker discarded the message: it was revoked, or it had expired."""
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    calls.wake("two")
    assert calls.release(parked_token("two")) == WOKE
    calls.wake("three")


def test_parked_message_without_its_record_is_published_and_not_lost(
    calls: ParkedCalls, backend: Backend
) -> None:
    """Its job had a reservation of another lock, by an earlier key of the task, which lapsed."""
    calls.start("one")
    calls.park("two", "three")
    backend.raw.hdel(backend.key("records", "a"), parked_token("two"))
    calls.end("one")
    assert sorted(it.token for it in calls.poll().messages) == sorted(tokens("two", "three"))
    assert calls.holding() == tokens("three")
    assert calls.start_or_park("two") == Parked(1)


def test_call_is_parked_at_publish_in_the_order_of_the_calls(
    calls: ParkedCalls, backend: Backend
) -> None:
    assert isinstance(calls.publish_or_park("one"), int)
    assert calls.publish_or_park("two") == Parked(1)
    assert calls.publish_or_park("three") == Parked(2)
    assert calls.publish_or_park("two") == Parked(1), "its reply was lost"
    for job in ("one", "two", "three"):
        assert isinstance(calls.start(job), int)
        calls.end(job)
        for message in calls.poll().messages:
            calls.confirm(message)
    assert_nothing_left(backend, calls)


def test_publish_that_is_repeated_after_the_message_was_woken_finds_itself(
    calls: ParkedCalls,
) -> None:
    calls.publish_or_park("one")
    calls.publish_or_park("two")
    calls.start("one")
    calls.end("one")
    conflict = calls.publish_or_park("two")
    assert isinstance(conflict, Conflict)
    assert [it.token for it in conflict.holders] == tokens("two")


def test_prune_leaves_parked_and_woken_messages(calls: ParkedCalls, backend: Backend) -> None:
    calls.start("one")
    calls.park("two", "three")
    calls.end("one")
    before = backend.content()
    admin.trim(backend.locks())
    assert backend.content() == before


def test_many_messages_are_woken_in_their_order(calls: ParkedCalls, backend: Backend) -> None:
    jobs = [f"job{number}" for number in range(120)]
    calls.start("first")
    calls.park(*jobs)
    before = "first"
    for job in jobs:
        assert calls.end(before) == WOKE
        calls.wake(job)
        assert isinstance(calls.start(job), int)
        before = job
    calls.end(before)
    assert_nothing_left(backend, calls)


def test_many_locks_are_looked_at_in_batches(calls: ParkedCalls, backend: Backend) -> None:
    names = [f"lock{number}" for number in range(70)]
    root = backend.commands().root(names[0])
    names = [name for name in names if backend.commands().root(name) == root]
    for name in names:
        calls.start("holder", name, token=f"run-{name}")
        calls.park(f"job-{name}", name=name)
        backend.lapse(name, f"run-{name}")
        make_due(backend, f"n{name}", name)
    seen: list[str] = []
    woken: list[str] = []
    while any((due := calls.poll(names[0]))[1:]):
        if due.names:
            calls.look_at(*due.names)
        if due.messages:
            assert calls.confirm(*due.messages, name=names[0]) == len(due.messages)
        seen += due.names
        woken += [it.token for it in due.messages]
    assert sorted(seen) == sorted(names)
    assert sorted(woken) == sorted(tokens(*(f"job-{name}" for name in names)))
