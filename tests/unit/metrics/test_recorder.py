"""How counts get to the server, once each."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from celery_locks import Locks, LockUnavailable, metrics
from celery_locks.admin.metric_sums import MetricField, read_counts
from celery_locks.clock import now
from celery_locks.errors import LockUsageError
from celery_locks.events import LockEvent, emit
from celery_locks.metrics import recorder as recorder_room
from celery_locks.metrics.recorder import Recorder
from celery_locks.store.effects import Call
from tests.support.waiting import wait_until


def event(kind: Any, token: str = "abc", **detail: Any) -> LockEvent:
    return LockEvent(kind, "invoice:42", token, 7, detail=detail)


def run_once(locks: Locks, name: str = "a") -> None:
    lease = locks.acquire(name)
    assert lease
    assert locks.acquire(name) is None
    lease.release()


def test_install_counts_what_happens(locks: Locks) -> None:
    metrics.install(locks)
    run_once(locks)
    metrics.uninstall()
    counts = read_counts(locks)
    assert counts[MetricField("acquired")] == 1
    assert counts[MetricField("conflicts", "", "direct")] == 1
    assert sum(n for field, n in counts.items() if field.series == "hold") == 1
    run_once(locks)
    assert read_counts(locks) == counts


def test_counts_are_sent_without_asking(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_room, "EVERY", 0.05)
    metrics.install(locks)
    run_once(locks)
    wait_until(
        lambda: MetricField("acquired") in read_counts(locks), 30, what="the counts to be sent"
    )


def test_installed_again_counts_once(locks: Locks) -> None:
    """Django imports an app's module twice more often than one thinks."""
    metrics.install(locks)
    metrics.install(locks)
    run_once(locks)
    metrics.uninstall()
    assert read_counts(locks)[MetricField("acquired")] == 1


def test_counts_from_many_threads_are_all_there(locks: Locks) -> None:
    metrics.install(locks)
    threads = [
        threading.Thread(target=lambda: [emit("acquired", "a", task="t") for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.uninstall()
    assert read_counts(locks)[MetricField("acquired", "t")] == 8000


class Flaky:
    """A store that takes the call and loses the reply, as often as it is told to."""

    def __init__(self, locks: Locks, losses: int, before: bool = False) -> None:
        self.locks, self.losses, self.before = locks, losses, before
        self.commands = locks.commands

    def store_for_thread(self) -> Any:
        return self

    def perform(self, call: Call) -> Any:
        self.losses -= 1
        if self.losses >= 0:
            if not self.before:
                self.locks.perform(call)
            raise LockUnavailable("away")
        return self.locks.perform(call)


@pytest.mark.parametrize("before", [True, False])
def test_lost_replies_neither_lose_nor_double(locks: Locks, before: bool) -> None:
    flaky: Any = Flaky(locks, 2, before)
    recorder = Recorder(lambda: flaky)
    recorder._is_started.acquire()  # no thread: the test is the thread
    recorder(event("skipped", task="t"))
    for _ in range(2):
        with pytest.raises(LockUnavailable):
            recorder.flush()
        recorder(event("skipped", task="t"))
    recorder.flush()
    assert read_counts(locks) == {MetricField("skipped", "t"): 3}


def test_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two seconds for a night would be all that the log has."""
    monkeypatch.setattr(recorder_room, "EVERY", 0.001)
    asked = threading.Semaphore(0)

    def broken() -> Any:
        asked.release()
        raise RuntimeError("no such server")

    recorder = Recorder(broken)
    recorder(event("skipped", task="t"))
    for _ in range(3):
        assert asked.acquire(timeout=30)
    recorder.wait_idle(0)
    recorder.after_fork()
    assert caplog.text.count("could not send the lock metrics") == 1


def test_server_that_is_away_at_the_end_is_not_waited_for(locks: Locks) -> None:
    flaky: Any = Flaky(locks, 10**9)
    recorder = Recorder(lambda: flaky)
    recorder(event("skipped", task="t"))
    began = now()
    recorder.wait_idle(0.2)
    assert now() - began < 2
    recorder.after_fork()  # its thread ends


def test_nothing_is_opened_at_install() -> None:
    """The module of an app calls it before the app is set up, and where no server is."""

    class Unready:
        @property
        def conf(self) -> Any:
            raise AssertionError("asked too early")

    metrics.install(Unready())


def test_install_refuses_what_has_no_server() -> None:
    with pytest.raises((LockUsageError, AttributeError)):
        metrics.locks_of(object())
