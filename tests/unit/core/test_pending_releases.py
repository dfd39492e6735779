"""Releases that could not be sent: when each is tried again, and what one costs the others."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import Any

import pytest

from celery_locks.core.pending_releases import PendingRelease, PendingReleases, ServerReleases
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import LockCommands, Mark
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

ONE_SHARD, SHARDS = LockCommands("p"), LockCommands("p", 4)
BUDGET = 1.0


def names_in(shard: int) -> list[str]:
    """Return lock names that are in one of the four shards."""
    return [name for name in map(str, range(200)) if SHARDS.root(name) == SHARDS.roots[shard]]


class Job(ServerReleases):
    """The job of one server, and what it has to send."""

    def __init__(self, store: ScriptedStore, clock: VirtualClock) -> None:
        self.releases, self.store, self.clock = PendingReleases(), store, clock
        self.calls: list[int] = []
        super().__init__(store.server.addresses, self.releases, self._budget)

    def _budget(self, calls: int) -> float:
        self.calls.append(calls)
        return BUDGET

    def add(self, name: Any, commands: LockCommands = ONE_SHARD, **fields: Any) -> PendingRelease:
        give_up_at = self.clock() + fields.pop("seconds", 60.0)
        token = fields.pop("token", f"t-{name}")
        pending = PendingRelease(name, token, self.store, commands, give_up_at, **fields)
        pending.due = self.clock()
        self.releases[token] = pending
        return pending

    @property
    def sent(self) -> list[str]:
        return [release.name for release in self.store.releases]


@pytest.fixture
def job(scripted_store: ScriptedStore, virtual_clock: VirtualClock) -> Job:
    return Job(scripted_store, virtual_clock)


def test_release_that_is_sent_is_pending_no_longer(job: Job, scripted_store: ScriptedStore) -> None:
    assert job.due == math.inf
    job.add("a")
    scripted_store.expect(("release", False))
    job.run()
    assert (job.releases, job.due) == ({}, math.inf)
    assert not job.releases.has_unsent


def test_release_without_a_reply_is_tried_again_in_a_moment(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """It may have been executed: a release that finds nothing does no harm."""
    job.add("a")
    scripted_store.expect(("release", reply_lost()))
    job.run()
    assert job.releases.has_unsent
    assert job.due == pytest.approx(virtual_clock() + 0.25)
    job.run()
    virtual_clock.advance(0.25)
    scripted_store.expect(("release", True))
    job.run()
    assert job.releases == {}


def test_error_that_ends_the_round_loses_no_release(
    job: Job, scripted_store: ScriptedStore
) -> None:
    """The thread survives everything, and runs its jobs again."""
    job.add("a")
    scripted_store.expect(("release", SystemExit()))
    with pytest.raises(SystemExit):
        job.run()
    scripted_store.expect(("release", True))
    job.run()
    assert job.releases == {}


def test_shard_that_does_not_answer_is_asked_once_a_round_and_costs_the_others_nothing(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """Its other releases wait with the first, instead of a timeout for each."""
    away, there = names_in(0)[:3], names_in(1)[:2]
    for name in (*away, *there):
        job.add(name, SHARDS)
    scripted_store.expect(("release", LockUnavailable("away")), *[("release", True)] * 2)
    job.run()
    assert job.sent == [away[0], *there]
    assert job.calls == [4], "half of the time that the two shards may take is the renewals'"
    virtual_clock.advance(0.25)
    scripted_store.expect(*[("release", True)] * 3)
    job.run()
    assert job.sent[3:] == [away[1], away[2], away[0]], "who failed is last in line"


def test_slow_server_gets_no_more_than_its_budget_in_a_round(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """The renewals of the same server wait meanwhile."""

    def slow(call: Any) -> bool:
        virtual_clock.advance(0.6)
        return True

    for name in ("a", "b", "c"):
        job.add(name)
    scripted_store.expect(("release", slow), ("release", slow))
    job.run()
    assert job.sent == ["a", "b"]
    assert [call.budget for call in scripted_store.performed] == [
        pytest.approx(BUDGET),
        pytest.approx(BUDGET - 0.6),
    ]
    scripted_store.expect(("release", True))
    job.run()
    assert job.releases == {}


def test_release_that_is_replaced_while_it_is_sent_is_sent_as_it_is_then(
    job: Job, scripted_store: ScriptedStore
) -> None:
    """The second one leaves a mark that the first one did not."""
    job.add("a")

    def replaced(_: Any) -> bool:
        job.add("a", marks=[Mark("e:j", 1, 60.0)])
        return True

    scripted_store.expect(("release", replaced), ("release", True))
    job.run()
    job.run()
    first, second = scripted_store.releases
    assert first.marks == []
    assert [mark.key for mark in second.marks] == ["e:j"]
    assert job.releases == {}


def test_release_is_given_up_when_the_lock_has_lapsed_and_that_is_logged_once(
    job: Job,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job.add("a", seconds=1.0)
    scripted_store.expect(*[("release", LockUnavailable("down"))] * 4)
    for _ in range(20):
        job.run()
        virtual_clock.advance(0.25)
    assert job.releases == {}
    assert [record.getMessage() for record in caplog.records] == [
        "lock 'a' could not be released and lapses: down"
    ]


def test_release_that_was_sent_and_is_repeated_ends_without_a_word(
    job: Job,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is sent again in case a grant was still on its way; nothing is wrong."""
    job.add("a", seconds=1.0, repeat_until_expired=True)
    scripted_store.expect(*[("release", False)] * 4)
    for _ in range(20):
        job.run()
        assert not job.releases.has_unsent, "the end of the process does not wait for it"
        virtual_clock.advance(0.25)
    assert job.releases == {}
    assert not caplog.records


@pytest.mark.parametrize(
    "times",
    [[0, 0.25, 0.5], [0, 0.25, 0.75], [0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 30]],
    ids=lambda times: str(times[-1]),
)
def test_repeated_release_is_sent_for_the_last_time_when_it_gives_up(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock, times: list[float]
) -> None:
    """A grant on its way between the last repetition and the end would stay for a ttl."""
    job.add("a", seconds=times[-1], repeat_until_expired=True)
    began, sent_at = virtual_clock(), list[float]()

    def note_time(_: Any) -> bool:
        sent_at.append(virtual_clock() - began)
        return False

    scripted_store.expect(*[("release", note_time)] * len(times))
    while job.releases:
        virtual_clock.advance(max(0.0, job.due - virtual_clock()))
        job.run()
    assert sent_at == pytest.approx(times)


def test_last_repetition_that_fails_is_logged(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock, caplog: Any
) -> None:
    """And is not tried for ever."""
    job.add("a", seconds=0.25, repeat_until_expired=True)
    scripted_store.expect(("release", True), ("release", LockUnavailable("down")))
    for _ in range(4):
        job.run()
        virtual_clock.advance(0.25)
    assert job.releases == {}
    assert "lapses: down" in caplog.text


def test_release_that_fails_unexpectedly_is_logged_once_and_tried_ever_more_rarely(
    job: Job,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be a passing error, and a mark that says that work is done must not be lost."""
    job.add("bad")
    job.add("good")
    tried_at: list[float] = []

    def fail(_: Any) -> Exception:
        tried_at.append(virtual_clock())
        return KeyError("a bug of ours")

    scripted_store.expect(("release", fail), ("release", True), *[("release", fail)] * 3)
    for _ in range(60):
        job.run()
        virtual_clock.advance(0.0625)
    assert job.sent == ["bad", "good", "bad", "bad", "bad"], "the good one does not wait for it"
    pauses = [later - sooner for sooner, later in pairwise(tried_at)]
    assert pauses == pytest.approx([0.25, 0.5, 1.0])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    virtual_clock.advance(10)
    scripted_store.expect(("release", True))
    job.run()
    assert job.releases == {}


@pytest.mark.parametrize("name", [None, "\ud800", 7, ["x"]], ids=repr)
def test_release_of_an_impossible_name_is_dropped_after_one_line(
    job: Job, scripted_store: ScriptedStore, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One such message made the thread spin for an hour, and renew nothing."""
    job.add(name, SHARDS, token="t", repeat_until_expired=True)
    job.add("other", SHARDS)
    scripted_store.expect(("release", True))
    job.run()
    job.run()
    assert job.sent == ["other"]
    assert job.releases == {}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("name", ["\ud800", "a"])
def test_release_that_no_call_can_be_made_of_is_dropped(
    job: Job, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With one shard no name is looked at before the call is made."""
    wrong: Any = [("too short",)]
    job.add(name, marks=wrong, token="t")
    for _ in range(3):
        job.run()
    assert job.releases == {}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_job_of_a_server_leaves_the_releases_of_another(
    job: Job, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """Its thread must not wait for a server that is not its own."""
    other = ScriptedStore(address="another")
    job.add("b").store = other
    assert job.due == math.inf
    job.run()
    assert scripted_store.performed == other.performed == []


def test_each_server_sends_its_own(
    still_renewer: StillRenewer, virtual_clock: VirtualClock
) -> None:
    """A server that is away does not delay the releases of another."""
    away = ScriptedStore(("release", LockUnavailable("away")), address="one")
    there = ScriptedStore(("release", True), address="two")
    for name, store in (("a", away), ("b", there)):
        release = PendingRelease(name, f"t-{name}", store, ONE_SHARD, virtual_clock() + 5)
        still_renewer.release_later(release)
    still_renewer.run_due()
    assert set(still_renewer.pending) == {"t-a"}
    away.check()
    there.check()


def test_release_that_ends_with_its_process_is_logged(
    still_renewer: StillRenewer,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted_store.expect(("release", LockUnavailable("down")))
    still_renewer.release_later(
        PendingRelease("a", "t", scripted_store, ONE_SHARD, virtual_clock() + 5)
    )
    still_renewer.run_due()
    still_renewer.wait_idle(0.0)
    assert "lock 'a' could not be released and lapses: down" in caplog.text
