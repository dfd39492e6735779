"""SingleBeat in virtual time: two beats of one app, of which the test elects one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab, solar

from celery_locks.beat import SingleBeat
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.store.effects import Call
from celery_locks.store.scripts import PlainCommand
from celery_locks.testing import in_memory_locks
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
Sent = list[tuple[str, float]]


class Candidate:
    """In place of the leader: the test elects it, and pauses it while it believes to lead."""

    def __init__(self, locks: Locks) -> None:
        self.name = "beat:shop"
        self.lease: Lease | None = None
        self._locks = locks

    def elect(self) -> None:
        self.lease = self._locks.acquire(self.name, ttl=10 * 86400)
        assert self.lease

    def depose(self) -> None:
        assert self.lease
        self.lease.release()
        self.lease = None

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Beat(SingleBeat):
    """Notes what it would send, and when."""

    producer = None
    sent: Sent

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> None:
        self.sent.append((entry.name, seconds()))


def seconds() -> float:
    return round((datetime.now(UTC) - MIDNIGHT).total_seconds(), 1)


class World:
    """The app, its locks, and what its beats sent; ``clock`` is the wall clock of all."""

    def __init__(
        self, app: Celery, locks: Locks, clock: time_machine.Traveller, deadlines: VirtualClock
    ) -> None:
        self.app, self.locks, self.clock, self._deadlines = app, locks, clock, deadlines
        self.sent: Sent = []

    def beat(self, schedule: dict[str, Any] | None = None, kind: type[Beat] = Beat) -> Any:
        if schedule is not None:
            entries = {name: {"task": "t", "schedule": every} for name, every in schedule.items()}
            self.app.conf.beat_schedule = entries
        beat = kind(app=self.app, schedule_filename="schedule", max_interval=60)
        beat._leader = Candidate(self.locks)  # type: ignore[assignment]
        beat.sent = self.sent
        return beat

    def active(self, schedule: dict[str, Any] | None = None, kind: type[Beat] = Beat) -> Any:
        beat = self.beat(schedule, kind)
        beat._leader.elect()
        return beat

    def run(self, *beats: Any, until: float) -> None:
        """Let the beats tick, and time pass between the ticks."""
        while (left := until - seconds()) > 0:
            # One that is not active looks often; here it may look less often.
            pause = min(beat.tick() if beat._leader.lease else beat.tick() * 25 for beat in beats)
            passes = min(max(pause, 0.01), left)
            self.clock.shift(passes)
            self._deadlines.advance(passes)

    def take_over(self, old: Any, new: Any) -> None:
        old._leader.depose()
        new._leader.elect()


@pytest.fixture
def world(still_renewer: StillRenewer, virtual_clock: VirtualClock) -> Iterator[World]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.result_expires = None  # no entry of Celery's own
    with (
        time_machine.travel(MIDNIGHT, tick=False) as clock,
        in_memory_locks(app) as locks,
    ):
        yield World(app, locks, clock, virtual_clock)
    app.close()


def test_interval_keeps_its_phase_over_a_takeover(world: World) -> None:
    """With a lock alone the next run would come a whole interval after the takeover."""
    first = world.active({"quarter": 900.0})
    world.run(first, until=1740)
    second = world.beat()
    world.take_over(first, second)
    world.run(second, until=3000)
    assert [round(at, -1) for _, at in world.sent] == [900, 1800, 2700]


def test_crontab_is_sent_once_by_the_beats_of_both_sides(world: World) -> None:
    first = world.active({"hourly": crontab(minute="0")})
    second = world.beat()
    world.run(first, second, until=3601)
    world.take_over(first, second)
    world.run(first, second, until=7300)
    assert [round(at, -1) for _, at in world.sent] == [3600, 7200]


def test_run_that_fell_due_before_the_takeover_is_sent_once(world: World) -> None:
    """Several of one entry are one, as after a restart of Celery's own beat."""
    first = world.active({"daily": crontab(hour="4", minute="0"), "often": 10.0})
    second = world.beat()
    world.run(first, second, until=4 * 3600 - 5)
    first._leader.depose()
    world.run(second, until=4 * 3600 + 40)
    before = len(world.sent)
    second._leader.elect()
    world.run(second, until=4 * 3600 + 45)
    assert sorted(name for name, _ in world.sent[before:]) == ["daily", "often"]


def test_solar_event_is_not_repeated(world: World) -> None:
    pytest.importorskip("ephem")
    first = world.active({"noon": solar("solar_noon", 48.2, 16.4)})
    world.run(first, until=86400)
    second = world.beat()
    world.take_over(first, second)
    world.run(second, until=2 * 86400)
    assert len(world.sent) == 2


def test_new_entry_counts_from_when_any_beat_saw_it_first(world: World) -> None:
    """Where each deployment starts new processes, a weekly entry would never run otherwise."""
    beat = world.active({"weekly": 7 * 86400.0})
    for day in range(1, 9):
        world.run(beat, until=day * 86400.0)
        beat._leader.depose()
        beat = world.active()
    assert [round(at, -1) for _, at in world.sent] == [7 * 86400]


def test_beat_that_was_paused_sends_nothing(world: World) -> None:
    """It still believes in its lease: only the claim on the lock server can stop it."""
    first = world.active({"minute": 60.0})
    world.run(first, until=30)
    second = world.beat()
    first.tick()
    world.locks.run(release_of(world.locks, first._leader.lease))
    second._leader.elect()
    world.clock.shift(31)
    second.tick()
    assert len(world.sent) == 1
    for _ in range(5):
        first.tick()
    assert len(world.sent) == 1
    assert first.schedule["minute"].total_run_count == 0


def release_of(locks: Locks, lease: Lease) -> Any:
    """Take the lock away from a lease that does not learn of it."""
    yield locks.commands.release(lease.name, lease.token)


def test_lapsed_lock_that_nobody_took_is_renewed(world: World) -> None:
    """The machine was suspended for a moment, and there is no other beat."""
    beat = world.active({"minute": 60.0})
    world.run(beat, until=30)
    world.clock.shift(11 * 86400)
    beat.tick()
    assert world.sent == []
    beat.tick()
    assert len(world.sent) == 1


@pytest.mark.parametrize("is_executed", [True, False])
def test_claim_without_a_reply_is_sent_once_later(
    world: World, monkeypatch: pytest.MonkeyPatch, is_executed: bool
) -> None:
    """Sent at once it might be a second run; forgotten it might be a lost one."""
    beat = world.active({"minute": 60.0})
    world.run(beat, until=59)
    perform = world.locks._store.perform

    def lose_reply(call: Any) -> Any:
        if isinstance(call, Call) and call.script.name in ("claim_run", "share_runs"):
            if is_executed:
                perform(call)
            raise LockUnavailable("no answer")
        return perform(call)

    monkeypatch.setattr(world.locks._store, "perform", lose_reply)
    world.run(beat, until=65)
    assert world.sent == []
    monkeypatch.setattr(world.locks._store, "perform", perform)
    world.run(beat, until=119)
    assert [name for name, _ in world.sent] == ["minute"]
    world.run(beat, until=130)
    assert len(world.sent) == 2


def test_claim_without_a_reply_is_forgotten_if_another_beat_went_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.active({"minute": 60.0}), world.beat()
    world.run(first, until=59)
    perform = world.locks._store.perform

    def fail(call: Any) -> Any:
        raise LockUnavailable("no answer")

    monkeypatch.setattr(world.locks._store, "perform", fail)
    world.run(first, until=61)
    monkeypatch.setattr(world.locks._store, "perform", perform)
    world.take_over(first, second)
    world.run(second, until=150)
    world.take_over(second, first)
    world.run(first, until=170)
    assert [round(at, -1) for _, at in world.sent] == [60, 120]
    world.run(first, until=185)
    assert len(world.sent) == 3


def test_lost_data_of_the_server_repeats_and_loses_nothing(world: World) -> None:
    """The beat that stands by has read the runs and writes them back."""
    first = world.active({"hourly": crontab(minute="0"), "quarter": 900.0})
    second = world.beat()
    world.run(first, second, until=3620)
    sent = len(world.sent)
    first._leader.depose()
    root = world.locks.commands.root("beat:shop")
    deleted = world.locks.perform(
        Call(PlainCommand("DEL"), root, (f"{root}b:beat:shop",), (), int, 3.0)
    )
    assert deleted == 1
    world.run(second, until=3640)
    second._leader.elect()
    world.run(second, until=4400)
    assert len(world.sent) == sent
    world.run(second, until=4600)
    assert world.sent[sent:] == [("quarter", pytest.approx(4500, abs=2))]


def test_beat_that_is_active_again_knows_what_the_other_sent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It slept meanwhile: its next runs are those that it computed before."""
    first, second = world.active({"minute": 60.0}), world.beat()
    world.run(first, until=59)
    world.take_over(first, second)
    world.run(second, until=70)
    world.take_over(second, first)
    world.run(first, until=130)
    assert [round(at, -1) for _, at in world.sent] == [60, 120]
    assert "does not send" not in caplog.text


def test_clock_that_is_behind_repeats_nothing(world: World) -> None:
    first, second = world.active({"hourly": crontab(minute="0")}), world.beat()
    world.run(first, until=3601)
    world.take_over(first, second)
    world.clock.shift(-5)
    world.run(second, until=7199)
    assert len(world.sent) == 1


def test_entry_that_left_the_schedule_for_long_is_new_when_it_returns(world: World) -> None:
    """Else it would be sent at once, for runs that nobody wanted."""
    first = world.active({"a": 3600.0, "b": 3600.0})
    world.run(first, until=4000)
    first._leader.depose()
    without = world.active({"a": 3600.0})
    world.run(without, until=9 * 86400.0)
    without._leader.depose()
    without = world.active()
    world.run(without, until=9 * 86400.0 + 60)
    without._leader.depose()
    again = world.active({"a": 3600.0, "b": 3600.0})
    sent = len(world.sent)
    world.run(again, until=9 * 86400.0 + 120)
    assert world.sent[sent:] == []


def test_changed_schedule_goes_on_from_the_last_run(world: World) -> None:
    first = world.active({"a": 3600.0})
    world.run(first, until=3700)
    first._leader.depose()
    second = world.active({"a": 600.0})
    world.run(second, until=4250)
    assert [round(at, -1) for _, at in world.sent] == [3600, 4200]


def test_beat_that_is_not_active_sends_nothing(world: World) -> None:
    beat = world.beat({"a": 1.0})
    world.run(beat, until=30)
    assert world.sent == []


def test_file_of_celerys_scheduler_may_be_used(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = world.locks.settings  # type: ignore[attr-defined]
    object.__setattr__(settings, "beat_scheduler", "celery.beat:PersistentScheduler")
    beat = world.active({"a": 60.0})
    assert isinstance(beat, PersistentScheduler)
    world.run(beat, until=70)
    assert len(world.sent) == 1
    assert "schedule" in beat.info
    beat.close()
    assert any(tmp_path.iterdir())


def test_single_beat_of_single_beat_is_refused(world: World) -> None:
    settings = world.locks.settings  # type: ignore[attr-defined]
    object.__setattr__(settings, "beat_scheduler", "celery_locks.beat:SingleBeat")
    with pytest.raises(LockUsageError, match="the scheduler that SingleBeat is to run"):
        world.beat({})


def test_celerys_own_cleanup_entry_is_there(world: World) -> None:
    """Celery's scheduler in memory would drop it again."""
    world.app.conf.result_expires = 3600
    assert set(world.beat({"a": 60.0}).schedule) == {"a", "celery.backend_cleanup"}


def test_banner_names_the_lock(world: World) -> None:
    info = world.beat({}).info
    assert "lock -> 'beat:shop', ttl 15 s" in info
    assert "schedule -> MemoryScheduler" in info


class Stopped(Beat):
    """Is told to stop in the middle of a send."""

    signals = 1

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> None:
        for _ in range(self.signals):
            signal.raise_signal(signal.SIGTERM)
        super().apply_async(entry)


class StoppedTwice(Stopped):
    signals = 2


@pytest.fixture
def handler() -> Iterator[Any]:
    """As Celery's: it ends the process wherever it is."""

    def leave(*_: Any) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, leave)
    yield leave
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("kind", "count"), [(Stopped, 1), (StoppedTwice, 0)])
def test_claimed_run_is_sent_before_beat_stops(
    world: World, handler: Any, kind: type[Beat], count: int
) -> None:
    """Each deployment stops beat; only a second signal may interrupt the send."""
    beat = world.active({"minute": 60.0}, kind)
    world.run(beat, until=59)
    with pytest.raises(SystemExit):
        world.run(beat, until=70)
    assert len(world.sent) == count
    assert signal.getsignal(signal.SIGTERM) is handler


def test_naive_times_are_utc(world: World) -> None:
    """As in a database without time zones."""
    first = world.active({"a": 3600.0})
    world.run(first, until=3700)
    second = world.beat()
    entry = second.schedule["a"]
    entry.last_run_at = entry.last_run_at.replace(tzinfo=None) - timedelta(days=1)
    world.take_over(first, second)
    world.run(second, until=3800)
    assert len(world.sent) == 1
    assert second.schedule["a"].last_run_at.tzinfo is None
