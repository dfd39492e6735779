"""The wire between the simulated processes and the server, and what goes wrong on it.

A call is sent as the store sends it (``store/routing.py``): twice at most, each try with half of
the budget. A request may be lost, or its reply; it may arrive late, after it was given up, and even
after a later release of the same token. A repeated request is one whose first reply was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import Any

from celery_locks.errors import LockUnavailable
from celery_locks.store.effects import Call
from tests.simulation.scheduler import Scheduler

# Seconds by which a late request is late, at most: longer than any ttl of a simulation.
_LATEST = 8.0


@dataclass
class Faults:
    """How probable each fault is: of each request, reply, message, delivery, or moment."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    message_lost: float = 0.0
    subscription_fails: float = 0.0
    stall: float = 0.0
    partition: float = 0.0
    death: float = 0.0
    data_loss: float = 0.0
    delivered_twice: float = 0.0

    @classmethod
    def draw(cls, random: Random) -> Faults:
        """Each seed has its own mix: some have few faults, some have one kind often."""
        return cls(**{it.name: random.choice((0.0, 0.01, 0.1, 0.25)) for it in fields(cls)})


Answer = Callable[[Any, BaseException | None], None]
Execute = Callable[[Call], Any]


class Wire:
    """Sends calls; ``execute`` is the server."""

    def __init__(self, scheduler: Scheduler, faults: Faults, execute: Execute) -> None:
        self._scheduler = scheduler
        self._random = scheduler.random
        self.faults = faults
        self._execute = execute

    def latency(self, longest: float = 0.0) -> float:
        """Return the time of one way; ``longest`` is that of a slow one."""
        if longest and self._random.random() < self.faults.slow:
            return self._random.uniform(0.0, longest)
        return self._random.uniform(0.0001, 0.003)

    def send(self, call: Call, is_cut: Callable[[], bool], answer: Answer) -> None:
        """Send a call; ``answer`` gets the reply or the error. ``is_cut``: nothing goes through."""
        starts, budget = self._scheduler.time, call.budget
        middle, end = starts + budget / 2, starts + budget
        if self._try(call, is_cut, answer, middle):
            return
        self._scheduler.at(middle, partial(self._send_again, call, is_cut, answer, end))

    def _send_again(
        self, call: Call, is_cut: Callable[[], bool], answer: Answer, end: float
    ) -> None:
        if not self._try(call, is_cut, answer, end):
            error = LockUnavailable("the simulated server gave no answer")
            self._scheduler.at(end, partial(answer, None, error))

    def _try(self, call: Call, is_cut: Callable[[], bool], answer: Answer, deadline: float) -> bool:
        """Send once; return True if a reply will come by the deadline."""
        random, faults, now = self._random, self.faults, self._scheduler.time
        if is_cut() or random.random() < faults.request_lost:
            return False
        way = deadline - now
        arrives = now + self.latency(way)
        if random.random() < faults.late:
            arrives = deadline + random.uniform(0.0, _LATEST)
        replies = arrives + self.latency(way)
        is_answered = replies <= deadline and random.random() >= faults.reply_lost
        self._scheduler.at(arrives, partial(self._arrive, call, answer, replies * is_answered))
        return is_answered

    def _arrive(self, call: Call, answer: Answer, replies: float) -> None:
        reply = self._execute(call)
        if replies:
            self._scheduler.at(replies, partial(answer, reply, None))
