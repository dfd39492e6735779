"""A simulated process: its clock, its renewer, its subscription, and the store of its code."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery_locks.core.lease import Lease
from celery_locks.core.operations import Operations
from celery_locks.logs import Reports
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import (
    Call,
    Operation,
    Sleep,
    Subscribe,
    WaitForHandover,
    run_sync,
)
from tests.simulation.scheduler import Activity, perform
from tests.support.clocked_server import PREFIX
from tests.support.still_renewer import StillRenewer, StillThread

if TYPE_CHECKING:
    from tests.simulation.world import World

# Later than any real clock: a default that was bound before the clock was replaced is past.
CLOCK_START = 1e9

# As in redis_store.py: how often a waiter asks that could not subscribe.
_UNSUBSCRIBED_POLL = 0.2


@dataclass(frozen=True)
class SleepUntilDue:
    """The effect of the background thread: sleep until a job is due."""


@dataclass(eq=False)
class _Wait:
    """One wait for a hand-over; the timer of an earlier one must not end it."""

    token: str
    activity: Activity


class _FailingReports(Reports):
    """Lets the simulation fail where the real ones log: no job may fail unexpectedly."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__()
        self._fail = fail

    def failure(self, sentence: str, *args: object) -> None:
        self._fail(f"{sentence % args}: {sys.exc_info()[1]!r}")


class _Thread(StillThread):
    on_wake: Callable[[], None]

    def _wake(self) -> None:
        self.on_wake()


class _Renewer(StillRenewer):
    """The renewer of one process; its only thread is an activity."""

    on_wake: Callable[[], None]

    def _make_thread(self, threads: dict[Hashable, Any], server: Hashable, jobs: Any) -> Any:
        if server not in threads:
            threads[server] = _Thread(jobs, self.reports)
            threads[server].on_wake = self.on_wake
        return threads[server]

    @property
    def first_due(self) -> float:
        return super().first_due if self._threads else math.inf


class SimulatedProcess:
    """One process with some threads; the backend of its leases."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.is_alive = True
        self.stalled_until = self.cut_until = 0.0
        self.channel = f"{PREFIX}:w:{number}"
        self._rate = world.draw_clock_rate()
        self._is_subscribed = False
        self._mail: dict[str, int] = {}  # token -> fence; 0: no message has come
        self._waiting: dict[str, _Wait] = {}
        self._background_due = math.inf
        self._is_background_idle = False
        self._activities: list[Activity] = []
        self.server = SimpleNamespace(addresses=(("simulated", 6379),), topology="single")
        self.commands = LockCommands(PREFIX)
        with world.running(self):
            self.renewer = _Renewer()
            self.renewer.reports = _FailingReports(world.fail)
            self.renewer.on_wake = self._look_at_jobs
            self.operations: Operations[Lease] = Operations(self, Lease, self, self.commands)
        self._background = self.start(self._run_background)

    def now(self) -> float:
        return CLOCK_START + self.world.scheduler.time * self._rate

    def start(self, program: Callable[[], None]) -> Activity:
        """Start a thread."""
        activity = Activity(program, self._take_effect)
        self._activities.append(activity)
        self.world.scheduler.after(0.0, partial(self._resume, activity))
        return activity

    def run(self, operation: Operation[Any]) -> Any:
        """Run an operation in the activity that calls this."""
        return run_sync(operation, perform)

    # The protocols ``Store`` and ``LeaseBackend``.

    def perform(self, effect: Any) -> Any:
        return perform(effect)

    def store_for_thread(self) -> SimulatedProcess:
        return self

    def unsubscribe(self, token: str) -> None:
        self._mail.pop(token, None)

    def renew(self, lease: Lease, ttl: float | None = None) -> None:
        self.run(self.operations.renew(lease, ttl))

    def release(self, lease: Lease) -> bool:
        return bool(self.run(self.operations.release(lease)))

    def push_back(self, key: str, seconds: float) -> None:
        raise NotImplementedError

    def close(self) -> None: ...

    def kill(self) -> None:
        """End the process as kill -9 does: nothing of it runs any more."""
        self.is_alive = False

    def discard(self) -> None:
        """Free the greenlets at the end of the simulation."""
        self.kill()
        with self.world.running(self):
            for activity in self._activities:
                activity.kill()

    def _resume(
        self, activity: Activity, value: Any = None, error: BaseException | None = None
    ) -> None:
        scheduler = self.world.scheduler
        if not self.is_alive:
            return
        if scheduler.time < self.stalled_until:
            scheduler.at(self.stalled_until, partial(self._resume, activity, value, error))
            return
        with self.world.running(self):
            activity.resume(value, error)

    def _take_effect(self, activity: Activity, effect: Any) -> None:
        later = self.world.scheduler.after
        if isinstance(effect, Call):
            self._send(activity, effect)
        elif isinstance(effect, Sleep):
            later(effect.seconds / self._rate, partial(self._resume, activity))
        elif isinstance(effect, Subscribe):
            channel = self._subscribe(effect)
            later(self.world.wire.latency(), partial(self._resume, activity, channel))
        elif isinstance(effect, WaitForHandover):
            self._wait(activity, effect)
        else:
            self._is_background_idle, self._background_due = True, math.inf
            self._look_at_jobs()

    def _send(self, activity: Activity, call: Call) -> None:
        def answer(reply: Any, error: BaseException | None) -> None:
            self._resume(activity, None if error else call.parse(reply), error)

        self.world.wire.send(call, self._is_cut, answer)

    def _is_cut(self) -> bool:
        """Return True if nothing that is sent now arrives: it is dead, or the network is cut."""
        return not self.is_alive or self.world.scheduler.time < self.cut_until

    def _subscribe(self, effect: Subscribe) -> str | None:
        if not self._is_subscribed:
            if not effect.connect:
                return None
            random, faults = self.world.scheduler.random, self.world.wire.faults
            if self._is_cut() or random.random() < faults.subscription_fails:
                return "-"
            self._is_subscribed = True
            self.world.server.subscribe(self.channel)
        self._mail.setdefault(effect.token, 0)
        return self.channel

    def _wait(self, activity: Activity, effect: WaitForHandover) -> None:
        token, seconds = effect.token, effect.seconds
        if token not in self._mail:
            seconds = min(seconds, _UNSUBSCRIBED_POLL)
        self._waiting[token] = wait = _Wait(token, activity)
        seconds = 0.0 if self._mail.get(token) else max(0.0, seconds)
        self.world.scheduler.after(seconds / self._rate, partial(self._end_wait, wait))

    def _end_wait(self, wait: _Wait) -> None:
        token = wait.token
        if self._waiting.get(token) is not wait:
            return  # a message ended this wait
        del self._waiting[token]
        fence = self._mail.get(token, 0)
        if fence:
            self._mail[token] = 0
        self._resume(wait.activity, fence)

    def receive(self, text: str) -> None:
        """Receive a published message; it is kept if its waiter does not wait just now."""
        token, _, fence = text.partition(" ")
        if not self.is_alive or token not in self._mail:
            return
        self._mail[token] = int(fence)
        if token in self._waiting:
            self._end_wait(self._waiting[token])

    def _run_background(self) -> None:
        while self.is_alive:
            perform(SleepUntilDue())
            self.renewer.run_due()

    def _look_at_jobs(self) -> None:
        """Wake the background thread when its next job is due, or now if one is."""
        due = self.renewer.first_due
        if not self._is_background_idle or due >= self._background_due:
            return
        self._background_due = due
        wakes_at = (due - CLOCK_START) / self._rate + 1e-6  # rounded up
        self.world.scheduler.at(wakes_at, partial(self._wake_background, due))

    def _wake_background(self, due: float) -> None:
        if due != self._background_due or not self.is_alive:
            return
        self._background_due = math.inf
        if self.renewer.first_due > self.now():  # put off meanwhile
            self._look_at_jobs()
            return
        self._is_background_idle = False
        self._resume(self._background)
