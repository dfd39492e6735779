"""The renewer as a whole: its threads, its leases, a fork."""

import logging
import threading
from typing import Any

import pytest

from celery_locks.core import lease as lease_module
from celery_locks.core.lease import Lease
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewal_job import ServerRenewals
from celery_locks.core.renewer import Renewer
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import LockSpec
from tests.support.scripted_store import AnsweringStore, ScriptedStore
from tests.support.still_renewer import StillRenewer, StillThread
from tests.support.virtual_clock import VirtualClock
from tests.support.waiting import wait_until


def lease(
    virtual_clock: VirtualClock, name: str = "a", ttl: float = 9, on_lost: Any = None
) -> Lease:
    return Lease(LockSpec(name, ttl), f"t-{name}", 1, virtual_clock(), on_lost)


def test_stores_are_not_mixed(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    other = AnsweringStore()
    still_renewer.add(lease(virtual_clock, "a"), answering_store, LockCommands("p"))
    still_renewer.add(lease(virtual_clock, "b"), other, LockCommands("p"))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert [len(answering_store.performed), len(other.performed)] == [1, 1]


def test_rescheduled_lease_is_due_by_its_new_ttl(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    kept = lease(virtual_clock, ttl=30)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    kept.change_ttl(3, virtual_clock())
    still_renewer.reschedule(kept.token)
    assert still_renewer.first_due == pytest.approx(virtual_clock() + 1)
    still_renewer.reschedule("unknown")


def test_thread_that_sleeps_is_woken_for_what_is_due_before_it_would_wake(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    """It may sleep for as long as nothing is due."""
    kept, commands = lease(virtual_clock, ttl=30), LockCommands("p")
    still_renewer.add(kept, answering_store, commands)
    [thread] = still_renewer._threads.values()
    assert isinstance(thread, StillThread)
    assert thread.wakes == 1
    thread._wakes_at = virtual_clock() + 10  # as it sleeps until the first renewal
    still_renewer.add(lease(virtual_clock, "b", ttl=60), answering_store, commands)
    assert thread.wakes == 1, "not for what is due later"
    kept.change_ttl(3, virtual_clock())
    still_renewer.reschedule(kept.token)
    assert thread.wakes == 2
    release = PendingRelease("c", "t", answering_store, commands, virtual_clock() + 5)
    still_renewer.release_later(release)
    assert thread.wakes == 3


def test_end_of_the_process_waits_for_releases_that_are_not_sent(
    still_renewer: StillRenewer,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most for so many seconds: a server that is away must not keep a worker from exiting."""

    def sleep(seconds: float) -> None:
        virtual_clock.advance(0.125)
        still_renewer.run_due()

    monkeypatch.setattr("celery_locks.core.renewer.original", lambda *_: sleep)
    scripted_store.expect(("release", LockUnavailable("away")), ("release", True))
    began = virtual_clock()
    release = PendingRelease("a", "t", scripted_store, LockCommands("p"), began + 5)
    still_renewer.release_later(release)
    still_renewer.wait_idle(1.0)
    assert virtual_clock() - began == pytest.approx(0.375)
    scripted_store.expect(*[("release", LockUnavailable("away"))] * 4)
    still_renewer.release_later(release)
    release.trouble = "not sent"
    still_renewer.wait_idle(1.0)
    assert virtual_clock() - began == pytest.approx(1.375)


def test_fork_starts_empty(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    still_renewer.add(lease(virtual_clock), answering_store, LockCommands("p"))
    still_renewer.after_fork()
    assert (still_renewer.tokens, still_renewer._threads) == (frozenset(), {})


def test_thread_survives_any_error_and_renews_on(
    answering_store: AnsweringStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread itself, on the real clock: even an error where none can be does not end it."""
    renewer = Renewer()
    kept = Lease(LockSpec("a", 1), "t", 1, lease_module.now())
    failed = threading.Event()
    real = ServerRenewals.run

    def fail_once(renewals: ServerRenewals) -> None:
        if not failed.is_set():
            failed.set()
            raise SystemExit("nobody may end this thread")
        real(renewals)

    monkeypatch.setattr(ServerRenewals, "run", fail_once)
    with caplog.at_level(logging.CRITICAL + 1, "celery_locks"):
        renewer.add(kept, answering_store, LockCommands("p"))
        wait_until(lambda: kept.renewals >= 2, what="two renewals")
    assert failed.is_set()
    renewer.discard("t")


def test_thread_renews_a_lease_that_its_user_forgot(answering_store: AnsweringStore) -> None:
    """Garbage collection of the lease must not free the lock."""
    renewer = Renewer()
    renewer.add(
        Lease(LockSpec("a", 1), "t", 1, lease_module.now()), answering_store, LockCommands("p")
    )
    wait_until(lambda: len(answering_store.performed) >= 2, what="two renewals")
    renewer.discard("t")
