"""The thread that renews every lease of a process: what fails in it costs itself only."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.clock import now
from celery_locks.core.background import BackgroundThread
from celery_locks.core.lease import Lease
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import Renewer
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.commands.replies import Lost
from celery_locks.types import LockSpec
from tests.support.waiting import wait_until

SERVER = (("localhost", 6379),)
COMMANDS = LockCommands("p", shards=4)
WRONG_NAMES = [None, "\ud800", 7, ["x"]]


class Store:
    """Grants everything but what is about the lock "bad", which raises ``trouble``."""

    server = SimpleNamespace(addresses=SERVER)

    def __init__(self, trouble: Exception | None = None) -> None:
        self.trouble = trouble
        self.bad = 0
        self.released: list[str] = []

    def perform(self, call: Any) -> Any:
        if "bad" in call.args:
            self.bad += 1
            raise self.trouble or AssertionError
        if call.script.name == "renew":
            return Lost()
        self.released.append(call.args[0])
        return True

    def unsubscribe(self, token: str) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def renewer() -> Iterator[Renewer]:
    made = Renewer()
    yield made
    for token in made.tokens:
        made.discard(token)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Renewer:
    """Without its threads."""
    monkeypatch.setattr(BackgroundThread, "_wake", lambda thread: None)
    return Renewer()


def kept(renewer: Renewer, store: Store, name: str = "good") -> Lease:
    """A lease that is renewed three times a second."""
    lease = Lease(LockSpec(name, 1), f"t-{name}", 1, now())
    renewer.add(lease, store, COMMANDS)
    return lease


def wait_renewed(lease: Lease, times: int = 4) -> None:
    wait_until(lambda: lease.renewals >= times, what=f"{times} renewals")


@pytest.mark.parametrize("name", WRONG_NAMES, ids=repr)
def test_pending_release_of_an_impossible_name_is_dropped_after_one_line(
    name: Any, renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """One such message made the thread spin for an hour, and renew nothing."""
    store = Store()
    renewer.release_later(PendingRelease(name, "t", store, COMMANDS, now() + 3600))
    renewer.release_later(PendingRelease("other", "u", store, COMMANDS, now() + 3600))
    wait_renewed(kept(renewer, store))
    assert store.released == ["other"]
    assert len(caplog.records) == 1, caplog.text
    assert renewer._pending_releases == {}


@pytest.mark.parametrize("name", ["\ud800", "a"])
def test_pending_release_no_call_can_be_made_of_is_dropped(
    name: str, still: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """With one shard no name is looked at before the call is made."""
    releases, store, renewer = still._pending_releases, Store(), still
    renewer.release_later(
        PendingRelease(name, "t", store, LockCommands("p"), now() + 3600, marks=[("too short",)])
    )  # type: ignore[list-item]
    for _ in range(3):
        releases.flush(SERVER, lambda calls: 0.1)
    assert releases == {}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_pending_release_that_fails_in_an_unforeseen_way_is_logged_once_and_tried_ever_more_rarely(
    still: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a passing error, and a mark that says that work is done must not be lost."""
    releases, store, renewer = still._pending_releases, Store(KeyError("a bug of ours")), still
    names = [
        "bad",
        *(name for name in map(str, range(99)) if COMMANDS.root(name) == COMMANDS.root("bad")),
    ]
    for name in names[:4]:
        renewer.release_later(PendingRelease(name, f"t-{name}", store, COMMANDS, now() + 3600))
    pauses = []
    for _ in range(4):
        releases.flush(SERVER, lambda calls: 0.1)
        pauses.append(releases["t-bad"].due - now())
        releases["t-bad"].due = now()
    assert store.released == names[1:4], "others of the same place wait for it"
    assert store.bad == 4
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    assert len(caplog.records) == 1, caplog.text
    store.trouble = LockUnavailable("down")
    releases.flush(SERVER, lambda calls: 0.1)
    assert releases["t-bad"].trouble == "down"


class BackgroundJob:
    """Always due, and fails."""

    def __init__(self) -> None:
        self.runs = 0
        self.due = now()

    def run(self) -> None:
        self.runs += 1
        raise KeyError("a bug of ours")


def test_failing_job_costs_neither_the_others_nor_the_processor(
    renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, store = [BackgroundJob(), BackgroundJob()], Store()
    for job in jobs:
        renewer.add_job(job)
    began = now()
    wait_renewed(kept(renewer, store), 6)
    most = (now() - began) / 0.25 + 2
    runs = [job.runs for job in jobs]
    for job in jobs:
        job.due = math.inf
    assert all(1 <= times <= most for times in runs), runs
    assert len(caplog.records) == 1, caplog.text


def test_failing_watcher_costs_the_others_nothing(
    renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is the death of a child whose locks are to be freed."""
    seen: list[int] = []

    def fails() -> None:
        raise KeyError("a bug of ours")

    pipes = [os.pipe() for _ in range(3)]
    for (readable, writable), then in zip(
        pipes, (fails, fails, lambda: seen.append(1)), strict=True
    ):
        os.write(writable, b"!")
        renewer.watch(readable, then)
    wait_until(lambda: seen, what="the third")
    wait_renewed(kept(renewer, Store()), 2)
    assert len(caplog.records) == 1, caplog.text
    for ends in pipes:
        for end in ends:
            os.close(end)


def test_lease_whose_renewal_fails_takes_none_of_its_batch_with_it(
    renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """What the store has of one lock may be unreadable; all go in one call."""
    store = Store(ValueError("unreadable"))
    same = [n for n in map(str, range(99)) if COMMANDS.root(n) == COMMANDS.root("bad")]
    caplog.set_level(logging.ERROR, "celery_locks")
    leases = [kept(renewer, store, name) for name in ("bad", *same[:3])]
    for lease in leases[1:]:
        wait_renewed(lease, 6)
    assert leases[0].renewals == 0
    assert len(caplog.records) <= 2, caplog.text


def test_lease_that_fails_to_hear_of_its_loss_takes_none_with_it(
    renewer: Renewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    first, second = kept(renewer, store, "a"), kept(renewer, store, "b")
    monkeypatch.setattr(type(first), "mark_renewed", fail_for(first, type(first).mark_renewed))
    wait_renewed(second, 6)


def fail_for(lease: Lease, original: Any) -> Any:
    def mark_renewed(self: Lease, *args: Any) -> None:
        if self is lease:
            raise KeyError("a bug of ours")
        original(self, *args)

    return mark_renewed
