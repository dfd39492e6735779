"""The timer that tells a task in the main thread of its lease's end; real signals, no server."""

import os
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from celery_locks import Locks
from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.core.requests import AcquireRequest
from celery_locks.errors import LeaseLost
from celery_locks.integration.interrupt import (
    SIGNAL,
    Interrupter,
    RemotelyRenewedLease,
    main_thread,
    make_interrupter,
)
from celery_locks.types import Holder, LockSpec
from tests.support.waiting import wait_until


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds for which the timer is set, by a timer that nobody has used."""
    monkeypatch.setattr(main_thread, "_timer", None)
    made: list[float] = []
    original = main_thread._Timer._set

    def noted(self: Any, seconds: float) -> None:
        made.append(seconds)
        original(self, seconds)

    monkeypatch.setattr(main_thread._Timer, "_set", noted)
    yield made
    assert not main_thread._running
    if main_thread._timer:
        main_thread._timer._stop()


def armed(ttl: float, sent_at: float | None = None) -> tuple[Interrupter, Lease]:
    interrupter = make_interrupter()
    lease = Lease(LockSpec(f"of {ttl}", ttl), "t", 1, sent_at or now(), interrupter.on_lost)
    interrupter.arm(lease, raise_loss=True)
    return interrupter, lease


def armed_until_soon() -> tuple[Interrupter, Lease]:
    """A lease of a second, of which a fifth is left."""
    return armed(1, now() - 0.8)


def test_short_tasks_share_one_setting_of_the_timer(settings: list[float]) -> None:
    """Setting it is dear: what runs for a moment must not pay for it each time."""
    for _ in range(50):
        interrupter, _ = armed(30)
        interrupter.disarm()
    assert len(settings) == 1
    assert settings[0] == pytest.approx(30, abs=1)


def test_a_shorter_lease_brings_the_timer_forward(settings: list[float]) -> None:
    """An earlier task left it set for half a minute; this one must hear of its end in time."""
    armed(30)[0].disarm()
    began = now()
    interrupter, lease = armed_until_soon()
    with pytest.raises(LeaseLost, match="not renewed in time"):
        wait_until(lambda: False, 5)
    assert now() - began > 0.1
    interrupter.disarm()
    assert lease.has_ended


def test_the_timer_of_an_earlier_task_does_no_harm(settings: list[float]) -> None:
    """It fires while the next one runs, whose lease is good, and is then set for that one."""
    armed_until_soon()[0].disarm()
    interrupter, lease = armed(60)
    assert len(settings) == 1
    wait_until(lambda: len(settings) == 2, 5)
    assert settings[1] == pytest.approx(58, abs=2)
    assert lease.state == "held"
    interrupter.disarm()


def test_a_timer_that_fires_while_nothing_runs_rests(settings: list[float]) -> None:
    armed_until_soon()[0].disarm()
    timer = main_thread._timer
    assert timer
    wait_until(lambda: timer.fires_at > now() + 3600, 5)
    assert len(settings) == 1
    armed(30)[0].disarm()
    assert len(settings) == 2


def test_nothing_is_raised_after_the_task_has_ended(settings: list[float]) -> None:
    """A signal may be on its way when the task ends; Celery's code comes next."""
    interrupter, lease = armed(30)
    interrupter.disarm()
    lease.lose("gone")
    os.kill(os.getpid(), SIGNAL)
    with pytest.raises(LeaseLost, match="gone"):
        lease.check()


def test_of_two_that_run_the_inner_one_is_lost_alone(settings: list[float]) -> None:
    """A locked task calls another directly, whose shorter lease ends first."""
    outer, lease = armed(60)
    inner, _ = armed_until_soon()
    with pytest.raises(LeaseLost, match="of 1"):
        wait_until(lambda: False, 5)
    inner.disarm()
    assert lease.state == "held"
    assert settings[-1] == pytest.approx(58, abs=2)
    outer.disarm()


def test_a_child_trusts_its_lease_no_longer_than_the_main_process_renews_it() -> None:
    """Which goes on with the task's ttl: beyond it another may have the lock."""
    locks = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    spec = LockSpec("a", 4.0)
    request = AcquireRequest(
        spec, Holder(), "token", now(), lease_class=RemotelyRenewedLease, renewed_elsewhere=True
    )
    lease: Any = locks.run(locks.operations.acquire(request))
    lease.renew(60)
    assert lease.remaining <= 4
    lease.renew(2)
    assert lease.remaining <= 2
    lease.renew(3)
    assert 2 < lease.remaining <= 3
    lease.release()
    locks.close()
