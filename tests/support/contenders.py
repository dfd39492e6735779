"""Many processes that contend for one lock and write down what they did (see `history`).

    python -m tests.support.contenders URL DIRECTORY KIND PROCESSES SECONDS LIMIT TTL

One Python that forks, since starting two dozen of them would take longer than the run. KIND is
``engine``, ``unguarded`` (ours without the guard after a loss) or one of the broken locks that the
checkers must convict.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import redis

from celery_locks import Locks, LockUnavailable
from celery_locks.clock import now
from celery_locks.store.effects import Call
from celery_locks.store.scripts import ACQUIRE
from tests.histories.recorder import install_if_wanted

NAME = "contended"


class Held(Protocol):
    token: str
    fence: int

    @property
    def remaining(self) -> float: ...
    def release(self) -> Any: ...


class Engine:
    """Ours, watched: when did the store first say that we stand in line?"""

    guard_after_loss = True

    def __init__(self, url: str, limit: int, ttl: float) -> None:
        install_if_wanted()
        self._locks = Locks.from_url(url, guard_after_loss=self.guard_after_loss)
        self._asked = {"limit": limit, "ttl": ttl, "wait": 60.0}
        store: Any = self._locks._store
        self._perform = store.perform
        store.perform = self._watch
        self.queued: float | None = None

    def _watch(self, effect: Any) -> Any:
        answer = self._perform(effect)
        if isinstance(effect, Call) and effect.script is ACQUIRE and "wait" in effect.args:
            self.queued = self.queued or time.monotonic()
        return answer

    def acquire(self) -> Held | None:
        self.queued = None
        return self._locks.acquire(NAME, **self._asked)  # type: ignore[arg-type]


class UnguardedEngine(Engine):
    """Ours, without the guard after a loss."""

    guard_after_loss = False


class Broken:
    """SET NX with a plain counter as fence; its release deletes whatever is there."""

    queued = None

    def __init__(self, url: str, limit: int, ttl: float) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._ttl = round(ttl * 1000)

    def acquire(self) -> Held | None:
        while not self._client.set(NAME, os.getpid(), nx=True, px=self._ttl):
            time.sleep(random.uniform(0.0005, 0.002))
        return BrokenLease(self._client, os.urandom(12).hex(), self._client.incr("fence"))


class BrokenLease:
    remaining = 1e9  # it has no deadline to know of

    def __init__(self, client: Any, token: str, fence: int) -> None:
        self._client, self.token, self.fence = client, token, fence

    def release(self) -> None:
        self._client.delete(NAME)


KINDS: dict[str, Callable[[str, int, float], Any]] = {
    "engine": Engine,
    "unguarded": UnguardedEngine,
    "broken": Broken,
}


def contend(lock: Any, log: TextIO, ends: float) -> None:
    while time.monotonic() < ends:
        asked = time.monotonic()
        try:
            lease = lock.acquire()
        except LockUnavailable:
            continue  # an honest answer of one that was stopped in the middle of a call
        entered = time.monotonic()
        if lease is None:
            continue
        note(
            log,
            token=lease.token,
            fence=lease.fence,
            asked=asked,
            queued=lock.queued or float("inf"),
            entered=entered,
        )
        time.sleep(random.uniform(0.0005, 0.004))
        left = time.monotonic()
        note(log, left=max(entered, min(left, time.monotonic() + lease.remaining)))
        with suppress(LockUnavailable):
            lease.release()
        if random.random() < 0.2:
            time.sleep(random.uniform(0, 0.02))


def note(log: TextIO, **step: Any) -> None:
    log.write(json.dumps(step) + "\n")
    log.flush()


def main(url: str, directory: str, kind: str, count: str, seconds: str, *rest: str) -> None:
    limit, ttl = int(rest[0]), float(rest[1])
    lock = KINDS[kind](url, limit, ttl)
    began = now()
    ends = time.monotonic() + float(seconds)
    pids = [os.fork() or _child(lock, Path(directory), ends) for _ in range(int(count))]
    print(*pids, flush=True)
    for pid in pids:
        os.waitpid(pid, 0)
    print(f"{now() - began:.1f}", flush=True)


def _child(lock: Any, directory: Path, ends: float) -> int:
    code = 1
    try:
        random.seed(os.getpid())
        with (directory / f"{os.getpid()}.jsonl").open("w") as log:
            contend(lock, log, ends)
        code = 0
    except BaseException:
        import traceback

        (directory / f"{os.getpid()}.failed").write_text(traceback.format_exc())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
