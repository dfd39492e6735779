"""How often one may ask, how much may be sent, and how many wait in threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.requests import Request

from celery_locks.errors import LockUsageError
from celery_locks.web.replies import Refusal

MOST_BYTES = 64 * 1024
_MINUTE = 60.0
_MOST_ADDRESSES = 100_000
# A release with a grace waits for up to a minute: those must not keep everybody from looking.
_THREADS = {"GET": 16, "POST": 8}
_limiters: RunVar[dict[str, CapacityLimiter]] = RunVar("celery_locks.web")
T = TypeVar("T")


class RequestLimit:
    """So many requests a minute from each address, in this process; counted anew each minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        if isinstance(per_minute, bool) or not isinstance(per_minute, int) or per_minute < 1:
            raise LockUsageError(
                f"requests_per_minute is {per_minute!r}; it must be a whole number from 1"
            )
        self._most = per_minute
        self._clock = clock
        self._ends = 0.0
        self._counts: dict[str, int] = {}

    def count(self, address: str) -> None:
        now = self._clock()
        if now >= self._ends:
            self._ends = now + _MINUTE
            self._counts.clear()
        count = self._counts.get(address, 0)
        is_one_too_many = not count and len(self._counts) >= _MOST_ADDRESSES
        if count >= self._most or is_one_too_many:
            seconds = max(1, math.ceil(self._ends - now))
            raise Refusal(
                429,
                f"More than {self._most} requests in a minute; try again in {seconds} s.",
                {"Retry-After": str(seconds)},
            )
        self._counts[address] = count + 1


async def body_of(request: Request) -> bytes:
    """The body, of which no more than the limit is ever kept."""
    kept = bytearray()
    async for chunk in request.stream():
        kept += chunk
        if len(kept) > MOST_BYTES:
            raise Refusal(413, f"The body is larger than {MOST_BYTES // 1024} kB.")
    return bytes(kept)


async def in_thread(method: str, function: Callable[..., T], *args: Any) -> T:
    """Run what blocks beside the event loop; looking and changing have threads of their own."""
    limiters = _limiters.get(None)
    if limiters is None:
        limiters = {name: CapacityLimiter(count) for name, count in _THREADS.items()}
        _limiters.set(limiters)
    return await to_thread.run_sync(function, *args, limiter=limiters[method])
