"""Random histories against a plain model with a clock that only moves when told to.

The model is the promise in Python: holders with an expiry, a line of waiters, one number that only
rises. Every answer of the store must be the model's, to the fence and the millisecond, and after
every step the list must be the model's too. It runs single-threaded on calls of `LockCommands`, so
who waits asks again explicitly; nobody listens, and a hand-over shows at the next question.

fakeredis' clock is moved with time-machine. A real server's cannot be moved, so there the scripts
read the time from a key instead; that line is the only thing changed in them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import fakeredis
import pytest
import time_machine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_locks.core.requests import new_token
from celery_locks.rates import Rate
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import (
    AcquireExtras,
    LockCommands,
    ParkRequest,
    RateCheck,
)
from celery_locks.store.commands.parking import BATCH, ParkCommands, ParkedMessage
from celery_locks.store.commands.rates import RateCommands
from celery_locks.store.commands.replies import DelayedGrant, Limited, Parked, Renewal
from celery_locks.store.effects import Call, run_sync
from celery_locks.store.redis_store import RedisStore
from celery_locks.types import Conflict, Holder, LockInfo, LockSpec, Override
from tests.support.clocked_server import ClockedServer

START = 1_800_000_000_000_000  # microseconds
CLAIM, FORGET = 1000, 60_000  # ms, as in handover.lua and prune.lua
PARKED, LOOK, PUBLISH = 315_360_000_000, 5000, 5000  # ms, as in park.lua and poll_due.lua
MOST_PARKED, ROOT = 4, "m:{0}:"
RANK = 25_000_000_000_000  # us, as in park.lua

LIMITS = {"mutex": 1, "semaphore": 2}
RATES = {"even": Rate.parse("2/s"), "bursty": Rate.parse(("2/s", "20/m"), burst=3)}
AHEAD, MESSAGE_RETURNS = 1_000_000, 250_000  # us, as in rates.lua


@dataclass
class Entry:
    """A holder or a waiter; `until` is its expiry or the time until which it counts as alive."""

    token: str
    until: int
    fence: int
    ttl: int
    limit: int  # 0: it is shared
    job: str | None = None
    attempt: int = 0
    several: bool = False  # a waiter for several locks, which asks for all of them itself


@dataclass
class Lock:
    """One lock of the model: its holders, its queue and its entry in the index."""

    holders: dict[str, Entry] = field(default_factory=dict)
    line: dict[str, Entry] = field(default_factory=dict)  # in the order of the tickets
    known_until: float | None = None  # the latest that any of them ever had; None: not in the index
    # What operators set: the limit and when it ends; "" is the lock's own pause, others are globs.
    limit: tuple[int, float] | None = None
    pauses: dict[str, float] = field(default_factory=dict)

    def know(self, until: int) -> int:
        self.known_until = max(self.known_until or 0, until)
        return until

    @property
    def markers(self) -> list[float]:
        return [*self.pauses.values(), *([self.limit[1]] if self.limit else [])]


@dataclass
class RateState:
    """One rate of the model: for each limit the next start to promise, and to take place."""

    limits: list[tuple[int, int]]  # charge and tolerance
    reserved: list[int]
    started: list[int]
    not_before: int = 0
    promises: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rate: Rate) -> "RateState":
        limits = [(int(it.split(":")[1]), int(it.split(":")[2])) for it in rate.text.split()]
        return cls(limits, [0] * len(limits), [0] * len(limits))

    def startable(self, now: int) -> int:
        pairs = zip(self.limits, self.started, strict=True)
        return max(now, self.not_before, *(at - tolerance for (_, tolerance), at in pairs))

    def free(self, now: int) -> int:
        pairs = zip(self.limits, self.reserved, strict=True)
        return max(self.startable(now), *(at - tolerance for (_, tolerance), at in pairs))

    def reserve(self, at: int) -> None:
        for i, (charge, _) in enumerate(self.limits):
            self.reserved[i] = max(at, self.reserved[i], self.started[i]) + charge

    def start(self, at: int) -> None:
        for i, (charge, _) in enumerate(self.limits):
            self.started[i] = max(at, self.started[i]) + charge

    def delayed(self, now: int) -> list[str]:
        """Return the callers whose start is still to come, in its order."""
        return [
            each for at, each in sorted((at, it) for it, at in self.promises.items()) if at > now
        ]


@dataclass
class Rated:
    """The rates of a call, who the promise is for, and whether it wants one."""

    rates: tuple[str, ...]
    caller: str
    patience: int


@dataclass
class Message:
    """A message to park, if the lock is busy; `attempt` is that of the run that parks it."""

    token: str
    attempt: int
    ttl: int
    rank: int = 0


class Model:
    """What the store should do, as a plain model."""

    def __init__(self) -> None:
        self.micros = START
        self.last = 0
        self.locks = {name: Lock() for name in LIMITS}
        self.patterns: dict[str, float] = {}
        self.parked: dict[str, tuple[int, int]] = {}  # token -> attempt and number of its message
        self.due: dict[str, int] = {}
        self.woke = False  # the last step woke a message
        self.rates = {name: RateState.of(rate) for name, rate in RATES.items()}
        self.started: dict[str, int] = {}  # token -> the start of a call that may be repeated
        self.starts: dict[str, list[int]] = {name: [] for name in RATES}

    def matching(self, name: str) -> dict[str, float]:
        live = {glob: ends for glob, ends in self.patterns.items() if ends > self.now}
        return {g: ends for g, ends in live.items() if g == "*" or name.startswith(g[0])}

    def overrides(self, lock: Lock) -> tuple[int | None, bool]:
        """Return the operator's limit and whether it is paused; forget what has ended."""
        lock.pauses = {glob: ends for glob, ends in lock.pauses.items() if ends > self.now}
        if lock.limit and lock.limit[1] <= self.now:
            lock.limit = None
        return lock.limit[0] if lock.limit else None, bool(lock.pauses)

    def limited(self, token: str, rated: Rated) -> tuple[Any, ...] | None:
        """Return nothing and count the start if it may start; else the rate that limits it."""
        if token in self.started:
            return None
        now, fits, waits = self.micros, {}, {}
        for name in rated.rates:
            rate = self.rates[name]
            promised = rate.promises.get(rated.caller)
            at = max(rate.startable(now), promised or 0)
            if promised is not None and at - now <= AHEAD:
                fits[name] = at
            else:
                keeps = promised is not None and promised > now
                waits[name] = promised if keeps and promised else rate.free(now), keeps
        start = max(now, *fits.values()) if fits else now
        late = [name for name, (at, keeps) in waits.items() if keeps or at > start]
        if late:
            name = max(late, key=lambda it: waits[it][0])
            (at, keeps), rate = waits[name], self.rates[name]
            if not keeps and at - now <= rated.patience:
                if rated.caller.startswith("j"):
                    at = max(at, now + MESSAGE_RETURNS)
                rate.reserve(at)
                rate.promises[rated.caller] = at
                keeps = True
            delayed = rate.delayed(now)
            ahead = delayed.index(rated.caller) if keeps else len(delayed)
            return "limited", name, at - now, ahead, keeps
        for name in rated.rates:
            rate = self.rates[name]
            rate.promises.pop(rated.caller, None)
            if name not in fits:
                rate.reserve(start)
            rate.start(start)
            self.starts[name].append(start)
        self.started[token] = start
        return None

    def granted(self, fence: int, token: str) -> int | tuple[Any, ...]:
        """Return the fence, and with a rate the time until the start."""
        start_in = self.started.get(token, 0) - self.micros
        return ("start_in", fence, start_in) if start_in > 0 else fence

    @property
    def now(self) -> int:
        return self.micros // 1000

    def number(self) -> int:
        self.last = max(self.last + 1, self.micros)
        return self.last

    def acquire(
        self,
        name: str,
        entry: Entry,
        alive: int,
        rated: Rated | None = None,
        message: Message | None = None,
    ) -> Any:
        """Return the fence, a rate that does not let it start, or the holders' tokens.

        With a message it is parked instead, if there is room: its position.
        """
        answer = self.decide(name, entry, alive, rated, message)
        return self.granted(answer, entry.token) if rated and isinstance(answer, int) else answer

    def leave(self, lock: Lock, token: str) -> None:
        lock.holders.pop(token, None)
        lock.line.pop(token, None)
        self.hand_over(lock)
        self.forget_if_empty(lock)

    def park(self, name: str, entry: Entry, message: Message) -> Parked | None:
        lock, token = self.locks[name], message.token
        waits = lock.line.get(token)
        if not waits and len(lock.line) >= MOST_PARKED:
            return None
        number = self.number()
        until = lock.know(self.now + PARKED)
        parked = Entry(token, until, number, message.ttl, entry.limit, entry.job, attempt=-1)
        stored, _ = self.parked.get(token, (0, 0))
        self.parked[token] = max(stored, message.attempt), number
        if waits:
            lock.line[token] = replace(parked, fence=waits.fence)
        else:
            parked.fence -= message.rank * RANK
            first = next(iter(lock.line.values()), None)
            if lock.holders.pop(token, None) and first:  # woken and paused: it comes first again
                parked.fence = min(parked.fence, first.fence - 1)
            lock.line[token] = parked
            self.sort(lock)
            self.due.pop(token, None)
        self.due.setdefault(f"n{name}", self.now + LOOK)
        if waits or message.rank > 0:
            self.hand_over(lock)
        return Parked(list(lock.line).index(token) + 1 if token in lock.line else 1)

    @staticmethod
    def sort(lock: Lock) -> None:
        lock.line = dict(sorted(lock.line.items(), key=lambda pair: pair[1].fence))

    def unpark(self, name: str, token: str, *, publish: bool) -> bool:
        lock = self.locks[name]
        if not lock.line.pop(token, None):
            return False
        if publish:
            self.due[token] = self.now
        else:
            del self.parked[token]
        self.hand_over(lock)
        self.forget_if_empty(lock)
        return True

    def poll(self) -> tuple[list[str], list[tuple[str, int]], int | None]:
        """Return the names to look at, tokens and numbers of messages, and ms to the next."""
        taken = sorted((at, member) for member, at in self.due.items() if at <= self.now)[:BATCH]
        names, messages = [], []
        for _, member in taken:
            self.due[member] = self.now + PUBLISH
            if member.startswith("n"):
                names.append(member[1:])
            elif member in self.parked:
                messages.append((member, self.parked[member][1]))
            else:
                del self.due[member]
        following = max(0, min(self.due.values()) - self.now) if self.due else None
        return names, messages, following

    def look_at(self, name: str) -> None:
        lock = self.locks[name]
        self.hand_over(lock)
        self.forget_if_empty(lock)
        first = min((holder.until for holder in lock.holders.values()), default=None)
        if not lock.line:
            self.due.pop(f"n{name}", None)
            self.restore_index(lock)
        elif first is not None:
            self.due[f"n{name}"] = min(first, self.due.get(f"n{name}", first))

    def confirm(self, token: str, number: int) -> bool:
        if self.parked.get(token, (0, 0))[1] != number:
            return False
        del self.parked[token]
        self.due.pop(token, None)
        return True

    def decide(
        self, name: str, entry: Entry, alive: int, rated: Rated | None, message: Message | None
    ) -> Any:
        lock = self.locks[name]
        if entry.token in lock.holders:  # the reply was lost, or it claims
            _, copy = self.same_job(lock, entry, lock.holders[entry.token].fence)
            if copy:
                return self.yield_to(lock, entry, copy)
            limited = rated and self.limited(entry.token, rated)
            if limited:
                self.leave(lock, entry.token)
                return limited
            lock.holders[entry.token].until = lock.know(self.now + entry.ttl)
            return lock.holders[entry.token].fence
        is_unused = not (lock.holders or lock.markers or lock.line)
        has_patterns = bool(self.patterns)
        if is_unused and has_patterns:
            self.number()  # the script learns by it that there are patterns
        matching = self.matching(name)
        self.patterns = {glob: ends for glob, ends in self.patterns.items() if ends > self.now}
        ended = {g for g, ends in lock.pauses.items() if g and matching.get(g) != ends}
        for glob in ended:
            del lock.pauses[glob]
        if ended:
            self.restore_index(lock)
        if alive or message:
            for glob, ends in matching.items():
                if glob not in lock.pauses:
                    lock.pauses[glob] = ends
                    lock.known_until = max(lock.known_until or 0, ends)
        operator_limit, is_paused = self.overrides(lock)
        is_paused = is_paused or bool(matching)
        self.drop_lapsed(lock)
        if not is_paused:
            self.hand_over(lock, asking=entry.token)
        earlier, copy = self.same_job(lock, entry, 0)
        if copy:
            return self.yield_to(lock, entry, copy)
        if is_paused:
            if message and (parked := self.park(name, entry, message)):
                return parked
            self.join(lock, entry, alive)
            return {t for t in lock.holders if not earlier or t != earlier.token}
        takes_over = earlier and (
            len(lock.holders) == 1 or bool(earlier.limit) == bool(entry.limit)
        )
        if earlier and not takes_over:
            del lock.holders[earlier.token]
            busy = set(lock.holders)
            self.hand_over(lock, asking=entry.token)
            if message and (parked := self.park(name, entry, message)):
                return parked
            self.join(lock, entry, alive)
            return busy
        ahead = [t for t in lock.line if t != entry.token]
        first = not ahead or next(iter(lock.line)) == entry.token
        if takes_over or (self.fits(lock, entry, operator_limit) and first):
            limited = rated and self.limited(entry.token, rated)
            if limited:
                if is_unused and not has_patterns:
                    self.number()  # by which the script learns that there are none
                self.leave(lock, entry.token)
                return limited
            if earlier:
                del lock.holders[earlier.token]
            return self.grant(lock, entry, entry.ttl)
        if message and (parked := self.park(name, entry, message)):
            return parked
        self.join(lock, entry, alive)
        return set(lock.holders)

    @staticmethod
    def fits(lock: Lock, entry: Entry, operator_limit: int | None) -> bool:
        """Return True if it may hold the lock beside the holders; those that share never mix."""
        mixes = any(bool(holder.limit) != bool(entry.limit) for holder in lock.holders.values())
        return not mixes and len(lock.holders) < (operator_limit or entry.limit or math.inf)

    def acquire_several(self, entries: dict[str, Entry], alive: int) -> tuple[int, ...] | str:
        """Return the fences, or the name of the first lock that is busy."""
        own = [self.locks[n].holders.get(entry.token) for n, entry in entries.items()]
        if all(own):
            for (name, entry), held in zip(entries.items(), own, strict=True):
                assert held
                held.until = self.locks[name].know(self.now + entry.ttl)
            return tuple(held.fence for held in own if held)
        if any(own):  # one of them was released by force
            for name, entry in entries.items():
                self.locks[name].holders.pop(entry.token, None)
                self.locks[name].line.pop(entry.token, None)
            for name in entries:
                self.hand_over(self.locks[name])
                self.forget_if_empty(self.locks[name])
        busy = [name for name, entry in entries.items() if not self.is_free(name, entry, alive)]
        if not busy:
            fences = tuple(self.grant(self.locks[n], e, e.ttl) for n, e in entries.items())
            for name in entries:
                self.hand_over(self.locks[name])
            return fences
        if alive:
            lines = [self.locks[name].line.get(entry.token) for name, entry in entries.items()]
            tickets = {waiter.fence if waiter else None for waiter in lines}
            ticket = tickets.pop() if len(tickets) == 1 else None
            ticket = ticket or self.number()
            for name, entry in entries.items():
                lock = self.locks[name]
                until = lock.know(self.now + alive)
                lock.line[entry.token] = replace(entry, until=until, fence=ticket, several=True)
                self.sort(lock)
        return busy[0]

    def is_free(self, name: str, entry: Entry, alive: int) -> bool:
        lock = self.locks[name]
        matching = self.matching(name)
        self.patterns = {glob: ends for glob, ends in self.patterns.items() if ends > self.now}
        self.update_pauses(lock, matching, adds=bool(alive))
        operator_limit, is_paused = self.overrides(lock)
        is_paused = is_paused or bool(matching)
        self.drop_lapsed(lock)
        if not is_paused:
            self.hand_over(lock, asking=entry.token)
        first = next(iter(lock.line), entry.token) == entry.token
        return not is_paused and first and self.fits(lock, entry, operator_limit)

    def update_pauses(self, lock: Lock, matching: dict[str, float], *, adds: bool) -> None:
        ended = {g for g, ends in lock.pauses.items() if g and matching.get(g) != ends}
        for glob in ended:
            del lock.pauses[glob]
        if ended:
            self.restore_index(lock)
        for glob, ends in matching.items() if adds else ():
            if glob not in lock.pauses:
                lock.pauses[glob] = ends
                lock.known_until = max(lock.known_until or 0, ends)

    def release_several(self, tokens: dict[str, str]) -> bool:
        held = [self.locks[name].holders.pop(token, None) for name, token in tokens.items()]
        for name, token in tokens.items():
            self.locks[name].line.pop(token, None)
        for name in tokens:
            self.hand_over(self.locks[name])
            self.forget_if_empty(self.locks[name])
        return all(held)

    def join(self, lock: Lock, entry: Entry, alive: int) -> None:
        if alive:
            ticket = lock.line[entry.token].fence if entry.token in lock.line else self.number()
            until = lock.know(self.now + alive)
            lock.line[entry.token] = replace(entry, until=until, fence=ticket)
            self.sort(lock)

    def same_job(self, lock: Lock, entry: Entry, fence: int) -> tuple[Entry | None, Entry | None]:
        """Return an earlier attempt of the same job, and a copy that runs this message."""
        earlier = copy = None
        for holder in sorted(lock.holders.values(), key=lambda h: (h.until, h.token)):
            same = entry.job and holder.job == entry.job and holder.token != entry.token
            if same and holder.until > self.now:
                if holder.attempt < entry.attempt:
                    earlier = earlier or holder
                elif not fence or holder.fence < fence:
                    copy = copy or holder
        return earlier, copy

    def yield_to(self, lock: Lock, entry: Entry, copy: Entry) -> set[str]:
        lock.holders.pop(entry.token, None)
        lock.line.pop(entry.token, None)
        self.hand_over(lock)
        return {copy.token}

    def cleanup(self) -> None:
        """Forget the names that lapsed long ago."""
        for name, old in self.locks.items():
            if old.known_until is not None and old.known_until <= self.now - FORGET:
                self.locks[name] = Lock()

    def grant(self, lock: Lock, entry: Entry, ttl: int) -> int:
        lock.line.pop(entry.token, None)
        until = lock.know(self.now + ttl)
        lock.holders[entry.token] = replace(entry, until=until, fence=self.number())
        return lock.holders[entry.token].fence

    def drop_lapsed(self, lock: Lock) -> None:
        lock.holders = {t: h for t, h in lock.holders.items() if h.until > self.now}

    def hand_over(self, lock: Lock, asking: str = "") -> None:
        """Grant free slots to the first live waiters; the caller itself is not granted here."""
        if not lock.line:
            return
        self.drop_lapsed(lock)
        operator_limit, is_paused = self.overrides(lock)
        for waiter in list(lock.line.values()):
            is_alive = waiter.until > self.now or waiter.token == asking
            if is_alive and (is_paused or not self.fits(lock, waiter, operator_limit)):
                return
            if waiter.token == asking or (is_alive and waiter.several):
                return
            del lock.line[waiter.token]
            if waiter.token in self.parked:
                self.grant(lock, waiter, waiter.ttl)
                self.due[waiter.token] = self.now
                self.woke = True
            elif is_alive:
                self.grant(lock, waiter, CLAIM)

    def override(self, name: str, limit: int, ends: float | None) -> bool:
        """Set or end (None) a limit or, with limit 0, a pause; return whether it was set."""
        lock = self.locks[name]
        before = lock.limit[1] if limit and lock.limit else None
        before = lock.pauses.pop("", None) if not limit else before
        if limit:
            lock.limit = None if ends is None else (limit, ends)
        elif ends is not None:
            lock.pauses[""] = ends
        self.restore_index(lock)
        self.hand_over(lock)
        self.forget_if_empty(lock)
        return before is not None and before > self.now

    def set_pattern(self, glob: str, ends: float | None) -> None:
        self.patterns.pop(glob, None)
        if ends is not None:
            self.patterns[glob] = ends

    def apply_patterns(self) -> None:
        """Apply the patterns to the names in the index, as pausing a pattern does."""
        for name, lock in self.locks.items():
            if lock.known_until is None:
                continue
            matching = self.matching(name)
            ended = {
                glob for glob, ends in lock.pauses.items() if glob and matching.get(glob) != ends
            }
            for glob in ended:
                del lock.pauses[glob]
            if lock.holders or lock.line or lock.markers or ended:
                for glob, ends in matching.items():
                    lock.pauses[glob] = ends
                    lock.known_until = max(lock.known_until or 0, ends)
            if ended:
                self.restore_index(lock)
                self.hand_over(lock)
                self.forget_if_empty(lock)

    def restore_index(self, lock: Lock) -> None:
        entries = [entry.until for entry in (*lock.holders.values(), *lock.line.values())]
        latest = max([*entries, *lock.markers], default=None)
        lock.known_until = latest if latest is not None else lock.known_until

    def release(self, name: str, token: str, keep: int) -> int:
        """Return 1 if it was held, 3 if a message was woken too, else 0."""
        lock, self.woke = self.locks[name], False
        held = lock.holders.pop(token, None)
        if not held and token not in self.parked:
            lock.line.pop(token, None)
        if held and keep:
            until = lock.know(self.now + keep)
            lock.holders[f"-{token}"] = replace(held, token=f"-{token}", until=until)
            return 1
        self.hand_over(lock)
        self.forget_if_empty(lock)
        return (3 if self.woke else 1) if held else 0

    @staticmethod
    def forget_if_empty(lock: Lock) -> None:
        if not lock.holders and not lock.line and not lock.markers:
            lock.known_until = None

    def renew(self, name: str, token: str, ttl: int) -> bool:
        held = self.locks[name].holders.get(token)
        if held:
            held.until = self.locks[name].know(self.now + ttl)
        return bool(held)

    def force_release(self, name: str, token: str) -> set[str]:
        lock = self.locks[name]
        gone = [h for h in lock.holders.values() if token in ("", h.token)]
        for holder in gone:
            del lock.holders[holder.token]
        self.hand_over(lock)
        self.forget_if_empty(lock)
        return {h.token for h in gone if h.until > self.now}

    def living(self, name: str) -> tuple[list[Entry], list[Entry]]:
        lock = self.locks[name]
        holders = [h for h in lock.holders.values() if h.until > self.now]
        return holders, [w for w in lock.line.values() if w.until > self.now]


class World:
    """A store whose clock the test sets."""

    def __init__(self, store: RedisStore, raw: Any) -> None:
        self.store = store
        self.raw = raw

    def set_clock(self, micros: int) -> None:
        raise NotImplementedError

    def perform(self, call: Call) -> Any:
        return self.store.perform(call)

    def close(self) -> None:
        self.store.close()


class FakeWorld(World):
    """fakeredis, with a clock that time-machine moves."""

    def __init__(self) -> None:
        client = fakeredis.FakeRedis()
        super().__init__(RedisStore.from_client(client, "m"), client)
        self._travel = time_machine.travel(START / 1e6, tick=False)
        self._clock = self._travel.start()
        client.flushall()

    def set_clock(self, micros: int) -> None:
        self._clock.move_to(micros / 1e6)

    def close(self) -> None:
        self._travel.stop()
        super().close()


# A token belongs to one lock only, as tokens are random.
TOKENS = {name: [f"{name[0]}{i}" for i in range(7)] for name in LIMITS}
JOBS = {name: [f"{name[0]}-parked-{i}" for i in range(3)] for name in LIMITS}
names = st.sampled_from(sorted(LIMITS))
pairs = st.sampled_from([(name, token) for name in LIMITS for token in TOKENS[name]])
# A holder or waiter of the lock, by number; 0 is a stranger.
picks = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
ttls = st.sampled_from([1000, 1500, 30_000])


class Machine(RuleBasedStateMachine):
    """The store and the model, side by side."""

    make_world: Any = FakeWorld

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.commands = LockCommands("m")
        self.world: World | ClockedServer = type(self).make_world()
        self.world.set_clock(self.model.micros)
        self.fences: dict[str, set[int]] = {name: set() for name in LIMITS}
        self.rated: dict[str, tuple[str, Entry, Rated, int]] = {}  # by token, to repeat the call
        self.tokens = 0
        self.polled: list[ParkedMessage] = []

    def teardown(self) -> None:
        self.world.close()

    @rule(
        pair=pairs,
        ttl=ttls,
        alive=st.sampled_from([0, 0, 400, 2400, 90_000]),
        other_limit=st.sampled_from([None] * 6 + [1, 2, 4, 0, 0, 0]),
        attempt=st.sampled_from([None, None, None, 0, 1, 2]),
        twice=st.booleans(),
    )
    def acquire(
        self,
        pair: tuple[str, str],
        ttl: int,
        alive: int,
        other_limit: int | None,
        attempt: int | None,
        twice: bool,
    ) -> None:
        self._acquire(pair, ttl, alive, other_limit, attempt, twice)

    def _acquire(
        self,
        pair: tuple[str, str],
        ttl: int,
        alive: int,
        other_limit: int | None,
        attempt: int | None,
        twice: bool,
    ) -> None:
        name, token = pair
        job = None if attempt is None else "job"
        limit = LIMITS[name] if other_limit is None else other_limit
        spec = LockSpec(name, ttl / 1000, limit or 1, shared=not limit)
        entry = Entry(token, 0, 0, ttl, spec.limit, job, attempt or 0)
        holder = Holder(task_id=job, retries=attempt or 0)
        call = self.commands.acquire(spec, token, holder, alive=alive / 1000)
        for _ in range(1 + twice):  # idempotent: sent again, it is answered the same
            expected = self.model.acquire(name, entry, alive)
            answer = self.world.perform(call)
            if isinstance(answer, Conflict):
                self._check_conflict(name, answer)
                answer = {h.token for h in answer.holders}
            assert answer == expected

    def _check_conflict(self, name: str, conflict: Conflict) -> None:
        lock = self.model.locks[name]
        own = [ends for glob, ends in lock.pauses.items() if not glob and ends > self.model.now]
        is_paused = bool(own or self.model.matching(name))
        assert bool(conflict.pause) == (is_paused and not self.is_copy(conflict))
        if conflict.holders:
            ends = min(lock.holders[h.token].until for h in conflict.holders)
            assert conflict.lapses_in == (ends - self.model.now) / 1000
        else:
            assert conflict.pause or next(iter(lock.line.values())).several

    @staticmethod
    def is_copy(conflict: Conflict) -> bool:
        """Whether the reply names only the copy: such a reply says nothing about a pause."""
        return not conflict.pause and len(conflict.holders) == 1

    @rule(
        name=names,
        alive=st.sampled_from([0, 0, 2400]),
        job=st.sampled_from([None, "r0", "r1", "r2"]),
        rates=st.sampled_from([("even",), ("bursty",), ("even", "bursty"), ("bursty", "even")]),
        patience=st.sampled_from([0, 10**12, 10**12]),
        twice=st.booleans(),
    )
    def acquire_at_rates(
        self,
        name: str,
        alive: int,
        job: str | None,
        rates: tuple[str, ...],
        patience: int,
        twice: bool,
    ) -> None:
        """Acquire as the run of a message: a new token, perhaps a promise of an earlier run."""
        self.tokens += 1
        token = f"r{self.tokens}"
        entry = Entry(token, 0, 0, 30_000, LIMITS[name], job, 1 if job else 0)
        rated = Rated(rates, f"j{job}" if job else token, patience)
        self.rated[token] = name, entry, rated, self.model.micros
        for _ in range(1 + twice):
            self._acquire_at_rates(name, entry, rated, alive)

    @rule(pick=st.integers(0, 3), alive=st.sampled_from([0, 2400]))
    def repeat_at_rates(self, pick: int, alive: int) -> None:
        """Repeat one of the last calls: its reply was lost, or a waiter polls or claims."""
        recent = [it for it in self.rated.values() if it[3] > self.model.micros - 9_000_000]
        if pick < len(recent):
            name, entry, rated, _ = recent[-1 - pick]
            self._acquire_at_rates(name, entry, rated, alive)

    def _acquire_at_rates(self, name: str, entry: Entry, rated: Rated, alive: int) -> None:
        checks = [RateCheck(it, RATES[it].text, rated.patience / 1e6) for it in rated.rates]
        call = self.commands.acquire(
            LockSpec(name, entry.ttl / 1000, entry.limit),
            entry.token,
            Holder(task_id=entry.job, retries=entry.attempt),
            AcquireExtras(rates=tuple(checks)),
            alive=alive / 1000,
        )
        expected = self.model.acquire(name, entry, alive, rated)
        answer = self.world.perform(call)
        if isinstance(answer, Conflict):
            answer = {h.token for h in answer.holders}
        if isinstance(answer, DelayedGrant):
            answer = "start_in", int(answer), round(answer.start_in * 1e6)
        if isinstance(answer, Limited):
            answer = self._limit_of(answer)
        assert answer == expected

    @staticmethod
    def _limit_of(limited: Limited) -> tuple[Any, ...]:
        rate, seconds, ahead, is_promised, _ = limited
        return "limited", rate, round(seconds * 1e6), ahead, is_promised

    @rule(
        rate=st.sampled_from(sorted(RATES)),
        patience=st.sampled_from([0, 400_000, 10**12]),
        twice=st.booleans(),
    )
    def throttle(self, rate: str, patience: int, twice: bool) -> None:
        self.tokens += 1
        token = f"r{self.tokens}"
        call = RateCommands(self.commands).throttle(
            RateCheck(rate, RATES[rate].text, patience / 1e6), token
        )
        for _ in range(1 + twice):
            expected = self.model.limited(token, Rated((rate,), token, patience))
            answer = self.world.perform(call)
            if isinstance(answer, Limited):
                assert self._limit_of(answer) == expected
            else:
                start_in = max(0, self.model.started[token] - self.model.micros)
                assert (expected, round(answer * 1e6)) == (None, start_in)

    @rule(rate=st.sampled_from(sorted(RATES)), ms=st.sampled_from([0, 700, 5000]))
    def push_back(self, rate: str, ms: int) -> None:
        state = self.model.rates[rate]
        state.not_before = max(state.not_before, self.model.micros + ms * 1000)
        self.world.perform(RateCommands(self.commands).push_back(rate, ms / 1000))

    @invariant()
    def starts_keep_to_the_rate(self) -> None:
        """After a burst of b, the start b later is at least an interval later."""
        for name, rate in RATES.items():
            starts = sorted(self.model.starts[name])
            gaps = [b - a for a, b in zip(starts, starts[rate.burst :], strict=False)]
            interval = max(charge for charge, _ in self.model.rates[name].limits)
            assert min(gaps, default=interval) >= interval

    @invariant()
    def promises_are_listed(self) -> None:
        page = run_sync(RateCommands(self.commands).page(), self.world.perform)
        listed = {info.name: info for info in page.rates}
        for name, state in self.model.rates.items():
            now = self.model.micros
            promises = [state.promises[it] - now for it in state.delayed(now)]
            pushed_back = max(0, state.not_before - self.model.micros)
            assert (name in listed) == bool(promises or pushed_back)
            if name in listed:
                info = listed[name]
                assert info.delayed == len(promises)
                assert [round(it.starts_in * 1e6) for it in info.callers] == promises[:20]
                assert round(info.pushed_back * 1e6) == pushed_back

    @rule(
        pair=pairs,
        ttl=ttls,
        alive=st.sampled_from([2400, 90_000]),
        shared=st.sampled_from([None, 0]),
    )
    def join(self, pair: tuple[str, str], ttl: int, alive: int, shared: int | None) -> None:
        """Wait in the queue, as most callers do."""
        self._acquire(pair, ttl, alive, shared, None, False)

    @rule(
        number=st.integers(0, 2),
        ttl=ttls,
        alive=st.sampled_from([0, 2400, 2400, 90_000]),
        limits=st.sampled_from([(1, 2), (1, 2), (0, 0), (2, 1)]),
        twice=st.booleans(),
    )
    def acquire_several(
        self, number: int, ttl: int, alive: int, limits: tuple[int, int], twice: bool
    ) -> None:
        token, names = f"b{number}", sorted(LIMITS)
        tokens = {names[0]: token, names[1]: f"{token}/1"}
        specs = [
            LockSpec(name, ttl / 1000, limit or 1, shared=not limit)
            for name, limit in zip(names, limits, strict=True)
        ]
        entries = {spec.name: Entry(tokens[spec.name], 0, 0, ttl, spec.limit) for spec in specs}
        call = self.commands.acquire(specs[0], token, Holder(), alive=alive / 1000, also=specs[1:])
        for _ in range(1 + twice):
            expected = self.model.acquire_several(entries, alive)
            answer = self.world.perform(call)
            if isinstance(answer, Conflict):
                self._check_holders(answer)
                assert answer.name == expected
            else:
                assert answer.fences == expected

    def _check_holders(self, conflict: Conflict) -> None:
        lock = self.model.locks[conflict.name]
        assert {h.token for h in conflict.holders} == set(lock.holders)

    @rule(number=st.integers(0, 2))
    def release_several(self, number: int) -> None:
        names = sorted(LIMITS)
        tokens = {names[0]: f"b{number}", names[1]: f"b{number}/1"}
        answer = self.world.perform(self.commands.release_several(names, f"b{number}"))
        assert answer == self.model.release_several(tokens)

    def _someone(self, name: str, pick: int) -> str:
        lock = self.model.locks[name]
        tokens = [token for token in (*lock.holders, *lock.line) if token[0] not in "-b"]
        return tokens[pick % len(tokens)] if pick and tokens else "stranger"

    @rule(
        name=names,
        job=st.integers(0, 2),
        retries=st.sampled_from([0, 0, 1]),
        ttl=ttls,
        other_limit=st.sampled_from([None] * 6 + [1, 2, 0]),
        lifetime=ttls,
        rank=st.sampled_from([0, 0, 0, -2, 1, 255]),
        twice=st.booleans(),
    )
    def run_or_park(
        self,
        name: str,
        job: int,
        retries: int,
        ttl: int,
        other_limit: int | None,
        lifetime: int,
        rank: int,
        twice: bool,
    ) -> None:
        """Run a message, which may have been woken or come again, or park it."""
        self.tokens += 1
        token, task_id = f"x{self.tokens}", JOBS[name][job]
        limit = LIMITS[name] if other_limit is None else other_limit
        spec = LockSpec(name, ttl / 1000, limit or 1, shared=not limit)
        holder = Holder(task_id=task_id, retries=retries)
        park = ParkRequest(
            holder._replace(retries=-1), retries + 1, lifetime / 1000, "the message", MOST_PARKED
        )._replace(rank=rank)
        call = self.commands.acquire(spec, token, holder, AcquireExtras(park=park))
        entry = Entry(token, 0, 0, ttl, spec.limit, task_id, retries)
        message = Message(f"k{task_id}", retries + 1, lifetime, rank)
        for _ in range(1 + twice):
            expected = self.model.acquire(name, entry, 0, message=message)
            answer = self.world.perform(call)
            if isinstance(answer, Conflict):
                answer = {h.token for h in answer.holders}
            assert answer == expected

    @rule(looks=st.booleans(), twice=st.booleans())
    def poll(self, looks: bool, twice: bool) -> None:
        """Take what is due; without ``looks`` the worker dies before it looks at the locks."""
        commands = ParkCommands(self.commands)
        names, messages, following = self.model.poll()
        due = self.world.perform(commands.poll(ROOT))
        assert due.names == names
        assert [(it.token, it.number) for it in due.messages] == messages
        assert due.next_in == (None if following is None else following / 1000)
        self.polled += due.messages
        for _ in range((1 + twice) * bool(looks and names)):
            self.model.woke = False
            for name in names:
                self.model.look_at(name)
            assert self.world.perform(commands.wake_waiters(ROOT, names)) is self.model.woke

    @rule(pick=st.integers(0, 4))
    def confirm(self, pick: int) -> None:
        """Confirm one of the last messages; others may have confirmed it, or parked it again."""
        if pick < len(self.polled):
            message = self.polled[-1 - pick]
            expected = self.model.confirm(message.token, message.number)
            call = ParkCommands(self.commands).confirm(ROOT, [message])
            assert self.world.perform(call) == expected

    @rule(name=names, job=st.integers(0, 2), publish=st.booleans())
    def unpark(self, name: str, job: int, publish: bool) -> None:
        token = f"k{JOBS[name][job]}"
        call = ParkCommands(self.commands).unpark(name, token, publish=publish)
        expected = self.model.unpark(name, token, publish=publish)
        assert self.world.perform(call) == ("the message" if expected else "")

    @invariant()
    def no_parked_message_is_lost(self) -> None:
        """Each one is in the queue of its lock, or somebody has to publish it."""
        raw = self.world.raw
        parked = {token.decode() for token in raw.hkeys(f"{ROOT}parked")}
        assert parked == self.model.parked.keys()
        due = {it.decode(): int(at) for it, at in raw.zrange(f"{ROOT}due", 0, -1, withscores=True)}
        assert due == self.model.due
        lines = {t for lock in self.model.locks.values() for t in lock.line if t[0] == "k"}
        assert lines | {member for member in due if member in parked} == parked
        assert all(
            f"n{name}" in due for name, lock in self.model.locks.items() if lines & {*lock.line}
        )

    @rule(name=names, pick=picks, alive=st.sampled_from([2400, 90_000]))
    def ask_again(self, name: str, pick: int, alive: int) -> None:
        """Repeat an acquire: a waiter polls or claims, or a holder's reply was lost."""
        token = self._someone(name, pick)
        if token != "stranger" and not token.startswith("k"):
            lock = self.model.locks[name]
            limit = (lock.holders.get(token) or lock.line[token]).limit
            self._acquire((name, token), 1500, alive, limit, None, False)

    @rule(name=names, pick=picks, keep=st.sampled_from([0, 0, 0, 700]))
    def release(self, name: str, pick: int, keep: int) -> None:
        token = self._someone(name, pick)
        answer = self.world.perform(self.commands.release(name, token, keep_for=keep / 1000))
        assert answer == self.model.release(name, token, keep)

    @rule(leases=st.lists(st.tuples(names, picks, ttls), min_size=1, max_size=4))
    def renew(self, leases: list[tuple[str, int, int]]) -> None:
        batch = [Renewal(name, self._someone(name, pick), ttl / 1000) for name, pick, ttl in leases]
        answers = self.world.perform(self.commands.renew(batch, 1)).lost
        held = [self.model.renew(name, token, round(ttl * 1000)) for name, token, ttl in batch]
        assert answers == {r.token for r, ours in zip(batch, held, strict=True) if not ours}

    @rule(name=names, pick=picks, only_one=st.sampled_from([True, True, True, False]))
    def force_release(self, name: str, pick: int, only_one: bool) -> None:
        token = self._someone(name, pick) if only_one else ""
        call = AdminCommands(self.commands).force_release(name, token, request_id=new_token())
        taken = self.world.perform(call)
        assert {h.token for h in taken} == self.model.force_release(name, token)

    @rule(
        name=names,
        limit=st.sampled_from([0, 0, 1, 3]),
        ends_in=st.sampled_from([0, 600, 5000]),
        sets=st.booleans(),
    )
    def override(self, name: str, limit: int, ends_in: int, sets: bool) -> None:
        """An operator pauses a lock, sets its limit, or ends that."""
        act: Any = (
            ("limit" if sets else "limit_reset") if limit else ("pause" if sets else "resume")
        )
        call = AdminCommands(self.commands).override(
            name, act, Override(limit, "me", "why", 0.0), ends_in / 1000, request_id=new_token()
        )
        ends = self.model.now + ends_in if ends_in else math.inf
        expected = self.model.override(name, limit, ends if sets else None)
        assert self.world.perform(call).was_set is expected

    @rule(
        glob=st.sampled_from(["*", "m*", "s?m*"]),
        ends_in=st.sampled_from([0, 600, 5000]),
        sets=st.booleans(),
        applies=st.booleans(),
    )
    def pause_pattern(self, glob: str, ends_in: int, sets: bool, applies: bool) -> None:
        """An operator pauses or resumes a pattern; without ``applies`` he was interrupted."""
        commands = AdminCommands(self.commands)
        ends = self.model.now + ends_in if ends_in else math.inf
        self.model.set_pattern(glob, ends if sets else None)
        pause = Override(0, "me", new_token(), 0.0, glob=glob)
        self.world.perform(
            commands.pattern("m:{0}:", pause, ends_in / 1000, sets=sets, request_id=new_token())
        )
        if applies:
            self.model.apply_patterns()
            self.world.perform(commands.apply_patterns("m:{0}:", sorted(LIMITS)))

    @rule()
    def cleanup(self) -> None:
        commands = AdminCommands(self.commands)
        run_sync(
            commands.prune_lapsed("m:{0}:", "index", self.model.micros / 1e6, 1), self.world.perform
        )
        self.model.cleanup()

    @rule(
        micros=st.sampled_from(
            [1, 999, 1000, 250_000, 250_000, 501_000, 501_000, 1_500_000, 40_000_000]
        )
    )
    def time_passes(self, micros: int) -> None:
        self.model.micros += micros
        self.world.set_clock(self.model.micros)

    @rule(back=st.sampled_from([1, 2_000_000]))
    def fence_is_ahead_of_the_clock(self, back: int) -> None:
        """Set the clock back, as a failover to a server with a slow clock does."""
        self.model.last = max(self.model.last, self.model.micros) + back
        flag = self.world.raw.get("m:{0}:fence") or b""
        self.world.raw.set("m:{0}:fence", f"{self.model.last}{' p' * flag.endswith(b'p')}")

    @invariant()
    def what_is_seen_is_the_truth(self) -> None:
        page = run_sync(self.commands.page(), self.world.perform)
        listed = {info.name: info for info in page.locks}
        for name in LIMITS:
            info = self.world.perform(self.commands.info(name))
            if name in listed or not self.model.matching(name):  # else only a pattern concerns it
                assert info == listed.get(name)
            info = info or LockInfo(name, LIMITS[name], ())
            self._equals_the_model(info)
            self._fences_rise(info)

    def _equals_the_model(self, info: LockInfo) -> None:
        holders, line = self.model.living(info.name)
        seen = {h.token: (h.fence, round(h.expires_at * 1000), h.retries) for h in info.holders}
        assert seen == {h.token: (h.fence, h.until, h.attempt) for h in holders}
        assert [w.token for w in info.waiters] == [w.token for w in line]
        lock = self.model.locks[info.name]
        live = [ends for glob, ends in lock.pauses.items() if not glob and ends > self.model.now]
        assert bool(info.pause) == bool(live or self.model.matching(info.name))
        limited = lock.limit if lock.limit and lock.limit[1] > self.model.now else None
        assert (info.limit_override and info.limit_override.limit) == (limited and limited[0])
        shares = {bool(h.limit) for h in holders}
        assert len(shares) < 2
        assert not holders or info.shared is not shares.pop()

    def _fences_rise(self, info: LockInfo) -> None:
        """Every new fence or ticket is higher than all that were seen before."""
        known = self.fences[info.name]
        fences = [h.fence for h in info.holders]
        assert len(set(fences)) == len(fences)
        assert all(fence > max(known, default=0) for fence in fences if fence not in known)
        known.update(fences)

    @invariant()
    def no_record_without_its_entry(self) -> None:
        """Nothing leaks: each record belongs to a holder or a waiter that is stored."""
        raw = self.world.raw
        stored = {
            t for name in LIMITS for kind in "hq" for t in raw.zrange(self._key(kind, name), 0, -1)
        }
        assert set(raw.hkeys("m:{0}:records")) == {t for t in stored if not t.startswith(b"~")}

    @staticmethod
    def _key(kind: str, name: str) -> str:
        return f"m:{{0}}:{kind}:{name}"


BOUNDS = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    print_blob=False,
)


@pytest.fixture(params=["fakeredis", "valkey"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[Machine]]:
    if request.param == "fakeredis":
        yield type("FakeMachine", (Machine,), {"make_world": FakeWorld})
    else:
        server = request.getfixturevalue("valkey")
        yield type("ServerMachine", (Machine,), {"make_world": lambda: ClockedServer(server)})


def test_store_behaves_as_the_model(machine: type[Machine], request: pytest.FixtureRequest) -> None:
    """Mutual exclusion, limit, fence order, first come first served, idempotence, the list."""
    examples = 25 if "fakeredis" in request.node.name else 120
    run_state_machine_as_test(machine, settings=settings(BOUNDS, max_examples=examples))
