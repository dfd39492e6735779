"""A correct lock and its clients in virtual time, with lost and late messages: histories by seed.

For the checker of histories: what comes from here must be accepted.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from tests.histories.requests import Request

CLAIM = 1.0
TTL = 2.0
# How long a client waits for a reply.
PATIENCE = 0.5

Reply = dict[str, Any]
Steps = Generator[Request | float, Reply | None, None]


class SimulatedLock:
    """The server: holders with their expiry, and a queue."""

    def __init__(self) -> None:
        self.fences: Iterator[int] = itertools.count(1)
        self.holders: dict[str, tuple[float, int, Request]] = {}
        self._queue: dict[str, Request] = {}
        self.on_hand_over: Callable[[str, int], None] = lambda token, fence: None

    def execute(self, request: Request, now: float) -> Reply:
        if request.operation == "acquire":
            return self._acquire(request, now)
        held = request.token in self.holders
        if request.operation == "renew":
            if held:
                self._hold(request.token, now + request.ttl)
        else:
            self.holders.pop(request.token, None)
            self._queue.pop(request.token, None)
            self._hand_over(now)
        return {"held": held}

    def _acquire(self, request: Request, now: float) -> Reply:
        if request.token in self.holders:
            self._hold(request.token, now + request.ttl)
            return {"fence": self.holders[request.token][1]}
        self.holders = {it: hold for it, hold in self.holders.items() if hold[0] > now}
        self._hand_over(now, request.token)
        others = [token for token in self._queue if token != request.token]
        is_first = not others or next(iter(self._queue)) == request.token
        if is_first and self.fits(request.limit):
            self._queue.pop(request.token, None)
            return {"fence": self._grant(request, now + request.ttl)}
        if request.waits:
            self._queue.setdefault(request.token, request)
        holders = sorted((hold[0], token) for token, hold in self.holders.items())
        listed = [{"token": token, "fence": self.holders[token][1]} for _, token in holders[:8]]
        ahead = [*self._queue].index(request.token) if request.waits else len(self._queue)
        return {"busy": listed, "ahead": ahead, "paused": False}

    def _hand_over(self, now: float, stop_at: str = "") -> None:
        while self._queue:
            token, request = next(iter(self._queue.items()))
            if token == stop_at or not self.fits(request.limit):
                return
            del self._queue[token]
            self.on_hand_over(token, self._grant(request, now + CLAIM))

    def fits(self, limit: int) -> bool:
        limits = [hold[2].limit for hold in self.holders.values()]
        if any((other == 0) != (limit == 0) for other in limits):
            return False
        return limit == 0 or len(limits) < limit

    def _grant(self, request: Request, expiry: float) -> int:
        fence = next(self.fences)
        self.holders[request.token] = (expiry, fence, request)
        return fence

    def _hold(self, token: str, expiry: float) -> None:
        self.holders[token] = (expiry, *self.holders[token][1:])


class Simulation:
    """Clients that send requests to one lock until ``seconds`` of virtual time have passed."""

    def __init__(
        self, seed: int, lock: SimulatedLock, *, clients: int = 4, seconds: float = 20.0
    ) -> None:
        self._dice = random.Random(seed)
        self._lock = lock
        self._lock.on_hand_over = self._hand_over
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: dict[str, tuple[float, Callable[[Reply | None], None]]] = {}
        self._seconds = seconds
        self._limit = self._dice.choice([1, 2, 0])
        self.now = 0.0
        self.requests: list[Request] = []
        for number in range(clients):
            self._continue(self._client(number), None)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _client(self, number: int) -> Steps:
        while self.now < self._seconds:
            yield self._dice.uniform(0.0, 0.5)
            limit = self._limit or self._dice.choice([0, 0, 1])
            token = f"{number}-{next(self._numbers)}"
            base = Request("lock", "acquire", token, 0.0, ttl=TTL, limit=limit, process=number)
            if (yield from self._acquire(base)):
                for _ in range(self._dice.randrange(3)):
                    yield replace(base, operation="renew")
                    yield self._dice.expovariate(2)
            for _ in range(3):  # until a reply comes
                if (yield replace(base, operation="release")) is not None:
                    break

    def _acquire(self, base: Request) -> Generator[Request | float, Reply | None, bool]:
        """Try twice; a client that waits asks again until it is served or has no patience."""
        waits = self._dice.random() < 0.6
        for _ in range(4):
            reply = yield replace(base, waits=waits)
            if reply is None:
                reply = yield replace(base, waits=waits)
            if reply is None:
                return False
            if "fence" in reply:
                return True
            if not waits:
                return False
            if (yield replace(base, operation="hand_over")) is not None:
                yield replace(base, operation="renew")
                return True
        return False

    def _continue(self, steps: Steps, reply: Reply | None) -> None:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        if isinstance(step, float):
            self._at(step, lambda: self._continue(steps, None))
        else:
            self._send(steps, replace(step, invoked=self.now))

    def _send(self, steps: Steps, request: Request) -> None:
        """Let the server execute it at some time, or never, and the client learn of it or not."""
        position = len(self.requests)
        self.requests.append(request)
        answered = False

        def answer(reply: Reply | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                if reply is not None:
                    self.requests[position] = replace(request, replied=self.now, reply=reply)
                self._waiting.pop(request.token, None)
                self._continue(steps, reply)

        self._at(PATIENCE if request.operation != "hand_over" else 1.0, lambda: answer(None))
        if request.operation == "hand_over":
            self._waiting[request.token] = (self.now, answer)
        elif self._dice.random() < 0.95:
            self._at(self._delay(), lambda: self._execute(request, answer))

    def _execute(self, request: Request, answer: Callable[[Reply | None], None]) -> None:
        reply = self._lock.execute(request, self.now)
        if self._dice.random() < 0.93:
            self._at(self._delay(), lambda: answer(reply))

    def _hand_over(self, token: str, fence: int) -> None:
        def tell() -> None:
            if token in self._waiting:
                self._waiting[token][1]({"fence": fence})

        self._at(self._delay(), tell)

    def _delay(self) -> float:
        """Mostly short, sometimes longer than anybody waits."""
        return self._dice.expovariate(1 / 0.05) if self._dice.random() < 0.95 else 1.5

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), event))


def history(seed: int, lock: SimulatedLock | None = None, **options: Any) -> list[Request]:
    """Return the requests of one run."""
    requests = Simulation(seed, lock or SimulatedLock(), **options).requests
    return [it for it in requests if it.replied < inf or it.operation != "hand_over"]
