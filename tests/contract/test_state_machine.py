"""Random histories against a plain model with a clock that only moves when told to.

The model is the promise in Python: holders with an expiry, a line of waiters, one number that only
rises. Every answer of the store must be the model's, to the fence and the millisecond, and after
every step the list must be the model's too. It runs single-threaded on calls of `LockCommands`, so
who waits asks again explicitly; nobody listens, and a hand-over shows at the next question.

fakeredis' clock is moved with time-machine. A real server's cannot be moved, so there the scripts
read the time from a key instead; that line is the only thing changed in them.
"""

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
from celery_locks.errors import LimitMismatch
from celery_locks.store.calls import Call, run_sync
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.commands.requests import Renewal
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import Script
from celery_locks.types import Conflict, Holder, LockInfo, LockSpec
from tests.servers.embedded import EmbeddedServer

START = 1_800_000_000_000_000  # microseconds
CLAIM, FORGET = 1000, 60_000  # ms, as in handover.lua and prune.lua

LIMITS = {"mutex": 1, "semaphore": 2}


@dataclass
class Entry:
    """A holder or a waiter; `until` is its expiry or the time until which it counts as alive."""

    token: str
    until: int
    fence: int
    ttl: int
    limit: int
    job: str | None = None
    attempt: int = 0


@dataclass
class Lock:
    """One lock of the model: its holders, its queue and its entry in the index."""

    holders: dict[str, Entry] = field(default_factory=dict)
    line: dict[str, Entry] = field(default_factory=dict)  # in the order of arrival
    known_until: int | None = None  # the latest that any of them ever had; None: not in the index

    def know(self, until: int) -> int:
        self.known_until = max(self.known_until or 0, until)
        return until


class Model:
    """What the store should do, as a plain model."""

    def __init__(self) -> None:
        self.micros = START
        self.last = 0
        self.locks = {name: Lock() for name in LIMITS}

    @property
    def now(self) -> int:
        return self.micros // 1000

    def number(self) -> int:
        self.last = max(self.last + 1, self.micros)
        return self.last

    def acquire(self, name: str, entry: Entry, alive: int) -> int | str | set[str]:
        """Return the fence, "limit", or the tokens of the holders."""
        lock = self.locks[name]
        if entry.token in lock.holders:  # the reply was lost, or it claims
            _, copy = self.same_job(lock, entry, lock.holders[entry.token].fence)
            if copy:
                return self.yield_to(lock, entry, copy)
            lock.holders[entry.token].until = lock.know(self.now + entry.ttl)
            return lock.holders[entry.token].fence
        self.drop_lapsed(lock)
        self.hand_over(lock, asking=entry.token)
        if any(holder.limit != entry.limit for holder in lock.holders.values()):
            if lock.line.pop(entry.token, None):
                self.hand_over(lock)
            return "limit"
        earlier, copy = self.same_job(lock, entry, 0)
        if copy:
            return self.yield_to(lock, entry, copy)
        if earlier:
            del lock.holders[earlier.token]
            return self.grant(lock, entry, entry.ttl)
        ahead = [t for t in lock.line if t != entry.token]
        first = not ahead or next(iter(lock.line)) == entry.token
        if len(lock.holders) < entry.limit and first:
            return self.grant(lock, entry, entry.ttl)
        if alive:
            ticket = lock.line[entry.token].fence if entry.token in lock.line else self.number()
            until = lock.know(self.now + alive)
            lock.line[entry.token] = replace(entry, until=until, fence=ticket)
        return set(lock.holders)

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
        if lock.line:
            self.drop_lapsed(lock)
        for waiter in list(lock.line.values()):
            if len(lock.holders) >= waiter.limit or waiter.token == asking:
                return
            del lock.line[waiter.token]
            if waiter.until > self.now:
                self.grant(lock, waiter, CLAIM)

    def release(self, name: str, token: str, keep: int) -> bool:
        lock = self.locks[name]
        held = lock.holders.pop(token, None)
        if not held:
            lock.line.pop(token, None)
        if held and keep:
            until = lock.know(self.now + keep)
            lock.holders[f"-{token}"] = replace(held, token=f"-{token}", until=until)
            return True
        self.hand_over(lock)
        self.forget_if_empty(lock)
        return bool(held)

    @staticmethod
    def forget_if_empty(lock: Lock) -> None:
        if not lock.holders and not lock.line:
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


class VirtualScript(Script):
    """A script that reads the time from a key."""

    def _read(self) -> str:
        asks, reads = "redis.call('TIME')", "redis.call('HMGET', 'm:{0}:clock', 's', 'us')"
        text = super()._read()
        assert text.count(asks) == 1
        return text.replace(asks, reads)


class ServerWorld(World):
    """A real server, whose scripts read the time from a key."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(RedisStore.from_url(server.url, "m"), server.client())
        self._scripts: dict[str, VirtualScript] = {}
        for key in self.raw.scan_iter(match="m:*"):
            self.raw.delete(key)

    def set_clock(self, micros: int) -> None:
        seconds, rest = divmod(micros, 1_000_000)
        self.raw.hset("m:{0}:clock", mapping={"s": seconds, "us": rest})

    def perform(self, call: Call) -> Any:
        if isinstance(call.script, Script):
            name, parts = call.script.name, (call.root, call.keys, call.args)
            script = self._scripts.setdefault(name, VirtualScript(name))
            call = Call(script, *parts, call.parse, call.budget)
        return super().perform(call)

    def close(self) -> None:
        self.raw.close()
        super().close()


# A token belongs to one lock only, as tokens are random.
TOKENS = {name: [f"{name[0]}{i}" for i in range(7)] for name in LIMITS}
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
        self.world: World = type(self).make_world()
        self.world.set_clock(self.model.micros)
        self.fences: dict[str, set[int]] = {name: set() for name in LIMITS}

    def teardown(self) -> None:
        self.world.close()

    @rule(
        pair=pairs,
        ttl=ttls,
        alive=st.sampled_from([0, 0, 400, 2400, 90_000]),
        other_limit=st.sampled_from([0] * 12 + [1, 2, 4]),
        attempt=st.sampled_from([None, None, None, 0, 1, 2]),
        twice=st.booleans(),
    )
    def acquire(
        self,
        pair: tuple[str, str],
        ttl: int,
        alive: int,
        other_limit: int,
        attempt: int | None,
        twice: bool,
    ) -> None:
        self._acquire(pair, ttl, alive, other_limit, attempt, twice)

    def _acquire(
        self,
        pair: tuple[str, str],
        ttl: int,
        alive: int,
        other_limit: int,
        attempt: int | None,
        twice: bool,
    ) -> None:
        name, token = pair
        job = None if attempt is None else "job"
        spec = LockSpec(name, ttl / 1000, other_limit or LIMITS[name])
        entry = Entry(token, 0, 0, ttl, spec.limit, job, attempt or 0)
        holder = Holder(task_id=job, retries=attempt or 0)
        call = self.commands.acquire(spec, token, holder, alive=alive / 1000)
        for _ in range(1 + twice):  # idempotent: sent again, it is answered the same
            expected = self.model.acquire(name, entry, alive)
            try:
                answer = self.world.perform(call)
            except LimitMismatch:
                answer = "limit"
            if isinstance(answer, Conflict):
                self._check_conflict(name, answer)
                answer = {h.token for h in answer.holders}
            assert answer == expected

    def _check_conflict(self, name: str, conflict: Conflict) -> None:
        lock = self.model.locks[name]
        ends = min(lock.holders[h.token].until for h in conflict.holders)
        assert conflict.lapses_in == (ends - self.model.now) / 1000

    @rule(pair=pairs, ttl=ttls, alive=st.sampled_from([2400, 90_000]))
    def join(self, pair: tuple[str, str], ttl: int, alive: int) -> None:
        """Wait in the queue, as most callers do."""
        self._acquire(pair, ttl, alive, 0, None, False)

    def _someone(self, name: str, pick: int) -> str:
        lock = self.model.locks[name]
        tokens = [token for token in (*lock.holders, *lock.line) if token[0] != "-"]
        return tokens[pick % len(tokens)] if pick and tokens else "stranger"

    @rule(name=names, pick=picks, alive=st.sampled_from([2400, 90_000]))
    def ask_again(self, name: str, pick: int, alive: int) -> None:
        """Repeat an acquire: a waiter polls or claims, or a holder's reply was lost."""
        token = self._someone(name, pick)
        if token != "stranger":
            self._acquire((name, token), 1500, alive, 0, None, False)

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
        self.world.raw.set("m:{0}:fence", self.model.last)

    @invariant()
    def what_is_seen_is_the_truth(self) -> None:
        page = run_sync(self.commands.page(), self.world.perform)
        listed = {info.name: info for info in page.locks}
        for name in LIMITS:
            assert self.world.perform(self.commands.info(name)) == listed.get(name)
            info = listed.get(name) or LockInfo(name, LIMITS[name], ())
            self._equals_the_model(info)
            assert len(info.holders) <= info.limit
            self._fences_rise(info)

    def _equals_the_model(self, info: LockInfo) -> None:
        holders, line = self.model.living(info.name)
        seen = {h.token: (h.fence, round(h.expires_at * 1000), h.retries) for h in info.holders}
        assert seen == {h.token: (h.fence, h.until, h.attempt) for h in holders}
        assert [w.token for w in info.waiters] == [w.token for w in line]

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
        assert set(raw.hkeys("m:{0}:records")) == stored

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
        yield type("ServerMachine", (Machine,), {"make_world": lambda: ServerWorld(server)})


def test_store_behaves_as_the_model(machine: type[Machine], request: pytest.FixtureRequest) -> None:
    """Mutual exclusion, limit, fence order, first come first served, idempotence, the list."""
    examples = 25 if "fakeredis" in request.node.name else 120
    run_state_machine_as_test(machine, settings=settings(BOUNDS, max_examples=examples))
