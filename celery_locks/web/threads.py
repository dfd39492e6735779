"""Blocking work runs in threads: a bounded number for each kind of request and each caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

RequestKind = Literal["quick", "slow", "change"]
# A release with a grace period may wait for a minute, and a query to workers for seconds: neither
# may keep others from reading the list.
_THREADS: dict[RequestKind, int] = {"quick": 16, "slow": 16, "change": 8}
_SLOW_PER_CALLER = 4
T = TypeVar("T")


class _Limiters:
    """The limiters of one event loop. A caller's limiter lives while one of its requests runs."""

    def __init__(self) -> None:
        self.by_kind = {kind: CapacityLimiter(count) for kind, count in _THREADS.items()}
        self._by_caller: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def for_caller(self, caller: str) -> CapacityLimiter:
        return self._by_caller.setdefault(caller, CapacityLimiter(_SLOW_PER_CALLER))


_limiters: RunVar[_Limiters] = RunVar("celery_locks.web")


async def run_in_thread(kind: RequestKind, function: Callable[..., T], *args: Any) -> T:
    """Run a blocking function outside the event loop; each kind has its own threads."""
    return await to_thread.run_sync(function, *args, limiter=_get_limiters().by_kind[kind])


async def run_slow(caller: str, function: Callable[..., T], *args: Any) -> T:
    """Run a slow request in a thread, a few at a time for each caller; the caller's others wait."""
    async with _get_limiters().for_caller(caller):
        return await run_in_thread("slow", function, *args)


def _get_limiters() -> _Limiters:
    limiters = _limiters.get(None)
    if limiters is None:
        limiters = _Limiters()
        _limiters.set(limiters)
    return limiters
