"""How often one may ask, how much may be sent, and how many wait in threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.requests import Request

from celery_locks.errors import LockUsageError
from celery_locks.web.responses import HttpError

MOST_BYTES = 64 * 1024
_MINUTE = 60.0
_MOST_COUNTED = 10_000
ParamKind = Literal["quick", "slow", "change"]
# A release with a grace waits for up to a minute, and a question to workers for seconds: neither
# may keep others from looking at the list.
_THREADS: dict[ParamKind, int] = {"quick": 16, "slow": 16, "change": 8}
_MOST_SLOW = 4
T = TypeVar("T")


class RequestLimit:
    """At most so many requests a minute from each caller, in this process.

    The memory is bounded: beyond so many callers in a minute, the count of the one who came first
    makes room. Whoever can come from that many networks is not stopped by counting, and nobody
    else is locked out.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        if isinstance(per_minute, bool) or not isinstance(per_minute, int) or per_minute < 1:
            raise LockUsageError(
                f"requests_per_minute is {per_minute!r}; it must be a whole number from 1"
            )
        self._most = per_minute
        self._clock = clock
        self._ends = 0.0
        self._counts: dict[str, int] = {}

    def count(self, caller: str) -> None:
        now = self._clock()
        if now >= self._ends:
            self._ends = now + _MINUTE
            self._counts.clear()
        count = self._counts.get(caller, 0)
        if count >= self._most:
            raise self._refusal(max(1, math.ceil(self._ends - now)))
        if not count and len(self._counts) >= _MOST_COUNTED:
            del self._counts[next(iter(self._counts))]
        self._counts[caller] = count + 1

    def _refusal(self, seconds: int) -> HttpError:
        return HttpError(
            429,
            f"More than {self._most} requests in a minute; try again in {seconds} s.",
            {"Retry-After": str(seconds)},
        )


async def body_of(request: Request) -> bytes:
    """The body, of which no more than the limit is ever kept."""
    kept = bytearray()
    async for chunk in request.stream():
        kept += chunk
        if len(kept) > MOST_BYTES:
            raise HttpError(413, f"The body is larger than {MOST_BYTES // 1024} kB.")
    return bytes(kept)


class _Threads:
    """The limits of one event loop. That of a caller lives as long as a question of theirs."""

    def __init__(self) -> None:
        self.of_kind = {kind: CapacityLimiter(count) for kind, count in _THREADS.items()}
        self._of_caller: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def of_caller(self, caller: str) -> CapacityLimiter:
        return self._of_caller.setdefault(caller, CapacityLimiter(_MOST_SLOW))


_threads: RunVar[_Threads] = RunVar("celery_locks.web")


async def in_thread(kind: ParamKind, function: Callable[..., T], *args: Any) -> T:
    """Run what blocks beside the event loop; each kind has threads of its own."""
    return await to_thread.run_sync(function, *args, limiter=_these_threads().of_kind[kind])


async def in_slow_thread(caller: str, function: Callable[..., T], *args: Any) -> T:
    """The same for slow questions, a few at a time of each caller: the others wait meanwhile."""
    async with _these_threads().of_caller(caller):
        return await in_thread("slow", function, *args)


def _these_threads() -> _Threads:
    threads = _threads.get(None)
    if threads is None:
        threads = _Threads()
        _threads.set(threads)
    return threads
