"""Parked messages on every store: groups take turns, the latest one waits, a run is joined."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks import Holder, Locks
from celery_locks.store.commands.locks import AcquireExtras, Mark, ParkRequest, reservation_token
from celery_locks.store.commands.parking import ParkCommands, ParkedMessage
from celery_locks.store.commands.replies import Completed, Ended, Parked
from celery_locks.types import Conflict, LockSpec
from tests.contract.backends import Backend
from tests.support.waiting import wait_until

SPEC = LockSpec("job", 30)


class Line:
    """A lock with a holder, and messages that are parked behind it."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self.commands = ParkCommands(locks.commands)
        self.root = locks.commands.root(SPEC.name)
        self._holder = "holder"
        assert isinstance(self._acquire("holder", "first"), int)

    def _acquire(self, token: str, job: str, extras: AcquireExtras | None = None) -> object:
        holder = Holder(task_id=job)
        return self.locks.perform(self.locks.commands.acquire(SPEC, token, holder, extras))

    def park(
        self,
        job: str,
        group: str = "",
        *,
        latest: bool = False,
        most: int = 1000,
        ticket: int = 0,
    ) -> object:
        message = Holder(task_id=job, retries=-1)
        park = ParkRequest(message, 1, 3600, f"message {job}", most, group, latest, ticket=ticket)
        return self._acquire(f"run-{job}", job, AcquireExtras(park=park))

    def poll(self) -> list[ParkedMessage]:
        messages = self.locks.perform(self.commands.poll(self.root)).messages
        if messages:
            self.locks.perform(self.commands.confirm(self.root, messages))
        return messages

    def run_next(self, but: str = "") -> str:
        """End the run of the holder, and let the message that is woken run; return its job."""
        self.locks.perform(self.locks.commands.release(SPEC.name, self._holder))
        [message] = [it for it in self.poll() if it.token != but]
        job = message.token[1:]
        assert message.message == f"message {job}"
        self._holder = f"run-{job}"
        assert isinstance(self._acquire(self._holder, job), int)
        return job


@pytest.fixture
def line(locks: Locks) -> Line:
    return Line(locks)


def test_groups_take_turns_however_many_one_of_them_parks(line: Line) -> None:
    for number in range(20):
        line.park(f"a{number}", "a")
    for job in ("b0", "c0", "b1"):
        line.park(job, job[0])
    order = [line.run_next() for _ in range(8)]
    assert order.index("b0") <= 3
    assert order.index("c0") <= 3
    assert order.index("b1") <= 6
    assert [job for job in order if job[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


@pytest.mark.parametrize("kind", [{"group": "tenant"}, {"latest": True}])
def test_what_is_known_about_groups_expires(
    line: Line, backend: Backend, kind: dict[str, Any]
) -> None:
    """A name may never be used again, and nobody would delete what is kept for its next message."""
    line.park("a", **kind)
    assert backend.raw.pttl(f"{line.root}g:{SPEC.name}") > 0


def test_group_that_comes_late_does_not_wait_for_the_others_past(line: Line) -> None:
    for number in range(10):
        line.park(f"a{number}", "a")
    assert [line.run_next() for _ in range(4)] == ["a0", "a1", "a2", "a3"]
    line.park("b0", "b")
    assert "b0" in [line.run_next() for _ in range(2)]


def test_message_without_a_group_is_not_starved_by_groups(line: Line) -> None:
    for number in range(5):
        line.park(f"a{number}", "a")
    line.park("alone")
    assert "alone" in [line.run_next() for _ in range(6)]


def test_latest_takes_the_place_of_the_one_that_waits(line: Line, backend: Backend) -> None:
    line.park("old", latest=True)
    line.park("other")
    assert line.park("new", latest=True) == Parked(2)
    [superseded] = line.poll()
    assert superseded._replace(number=0) == ParkedMessage("kold", 0, "message old", "new")
    assert [line.run_next(), line.run_next()] == ["other", "new"]
    assert backend.raw.exists(backend.key("parked", SPEC.name)) == 0


def test_copy_of_a_superseded_message_does_not_come_back(line: Line) -> None:
    """The broker may deliver it once more before anybody has stored that it is revoked."""
    line.park("old", latest=True)
    line.park("new", latest=True)
    answer = line.park("old", latest=True)
    assert isinstance(answer, Ended)
    assert answer.was_replaced
    assert line.run_next(but="kold") == "new"


def test_latest_parked_again_supersedes_nobody(line: Line) -> None:
    line.park("new", latest=True)
    assert line.park("new", latest=True) == Parked(1)
    assert line.poll() == []
    assert line.run_next() == "new"


def test_latest_that_is_woken_is_not_superseded(line: Line) -> None:
    """Its slot is reserved and its message on the way: the next one waits behind it."""
    line.park("waiting", latest=True)
    assert line.run_next() == "waiting"
    line.park("next", latest=True)
    assert line.poll() == []
    assert line.run_next() == "next"


def test_too_many_are_not_parked_but_one_that_is_parked_stays(line: Line) -> None:
    line.park("a", most=1)
    assert isinstance(line.park("b", most=1), Conflict)
    assert line.park("a", most=1) == Parked(1)


def test_joined_result_counts_from_the_fence_of_the_run_on(locks: Locks) -> None:
    commands, mark = locks.commands, "j:job"
    fence = locks.perform(commands.acquire(SPEC, "run", Holder(task_id="first")))
    result = Mark(mark, f"r{fence} the result", 60)
    assert locks.perform(commands.release(SPEC.name, "run", marks=[result]))
    joined = AcquireExtras(join=(mark, fence))
    answer = locks.perform(commands.acquire(SPEC, "next", Holder(task_id="next"), joined))
    assert answer == Completed(str(result.value))
    later = AcquireExtras(join=(mark, fence + 1))
    answer = locks.perform(commands.acquire(SPEC, "later", Holder(task_id="later"), later))
    assert isinstance(answer, int), "that result is older than the run it waited for"


def test_message_that_is_given_back_is_taken_by_another_worker(
    line: Line, backend: Backend
) -> None:
    """A worker that does not have the task cannot publish its message."""
    line.park("a")
    line.locks.perform(line.locks.commands.release(SPEC.name, "holder"))
    [message] = line.locks.perform(line.commands.poll(line.root)).messages
    assert line.locks.perform(line.commands.give_back(line.root, [message])) == 1
    wait_until(
        lambda: line.locks.perform(line.commands.poll(line.root)).messages,
        4,
        what="the message, before the time in which a worker that died would have published it",
    )


def test_second_call_with_the_same_id_does_not_replace_the_first(line: Line) -> None:
    """The publisher may choose the id, and a repeated call has the same record."""

    def publish(call: str) -> object:
        message = Holder(task_id="chosen", retries=-1, extra={"call": call})
        park = ParkRequest(message, 0, 3600, f"message {call}", 1000)
        token = reservation_token("chosen")
        spec = LockSpec("job", 3600)
        commands = line.locks.commands
        return line.locks.perform(commands.acquire(spec, token, message, AcquireExtras(park=park)))

    assert publish("first") == Parked(1)
    assert isinstance(publish("second"), Conflict)
    assert publish("first") == Parked(1)
    line.locks.perform(line.locks.commands.release(SPEC.name, "holder"))
    [message] = line.poll()
    assert message.message == "message first"


def test_run_that_waited_is_parked_in_its_place(line: Line) -> None:
    """It left the queue of waiting processes with this ticket, and others were parked since."""
    line.park("a0")
    waits = LockSpec(SPEC.name, SPEC.ttl, SPEC.limit, 5.0)
    call = line.locks.commands.acquire(waits, "run-waits", Holder(task_id="waits"), alive=60.0)
    conflict = line.locks.perform(call)
    assert isinstance(conflict, Conflict)
    line.locks.perform(line.locks.commands.release(SPEC.name, "run-waits"))
    line.park("a1")
    line.park("waits", ticket=conflict.ticket)
    assert [line.run_next() for _ in range(3)] == ["a0", "waits", "a1"]
