"""The scheduler: virtual time, the order of events, and the activities that take them as steps.

All randomness of a simulation comes from the one generator here. Events at the same time happen in
random order. An activity is a greenlet: one thread of a simulated process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

Action = Callable[[], None]


class Scheduler:
    """Takes the next event; ``time`` is the true time in seconds, which no process knows."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = 0.0
        self.steps = 0
        self.digest = 0
        """A checksum of everything that happened: two runs of a seed have the same."""
        self._events: list[tuple[float, float, int, Action]] = []
        self._number = 0

    def at(self, time: float, action: Action) -> None:
        self._number += 1
        event = (max(time, self.time), self.random.random(), self._number, action)
        heappush(self._events, event)

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.time + seconds, action)

    def step(self) -> None:
        self.time, _, _, action = heappop(self._events)
        self.steps += 1
        action()

    def record(self, *facts: Any) -> None:
        """Add what has happened to the digest."""
        self.digest = zlib.crc32(repr((self.time, *facts)).encode(), self.digest)


class Activity:
    """One thread of a process; ``take_effect`` is called with each effect that it performs."""

    def __init__(self, program: Action, take_effect: Callable[[Activity, Any], None]) -> None:
        self._greenlet = greenlet(lambda _: program())
        self._take_effect = take_effect

    @property
    def has_ended(self) -> bool:
        return self._greenlet.dead

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Run until the next effect, or the end."""
        running = self._greenlet
        effect = running.throw(error) if error else running.switch(value)
        if not running.dead:
            self._take_effect(self, effect)

    def kill(self) -> None:
        """End it at once; whatever it still does on its way out has no effect."""
        if not self._greenlet.dead:
            self._greenlet.throw(GreenletExit)


def perform(effect: Any) -> Any:
    """Perform an effect of the activity that runs: return when the scheduler says its result."""
    return getcurrent().parent.switch(effect)
