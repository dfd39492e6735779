"""Fair timing of candidates: in turns, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

MICROSECOND = 1e-6


def in_turns(
    candidates: Mapping[str, Callable[[], object]], rounds: int, each: int
) -> dict[str, list[float]]:
    """Time calls in seconds: ``each`` of one candidate, then of the next, ``rounds`` times."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            taken[name] += [_timed(call) for _ in range(each)]
    return taken


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


async def in_turns_async(
    candidates: Mapping[str, Callable[[], Awaitable[object]]], rounds: int, each: int
) -> dict[str, list[float]]:
    """Time calls as ``in_turns`` does, awaited."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        await call()
    for _ in range(rounds):
        for name, call in candidates.items():
            for _ in range(each):
                began = time.perf_counter()
                await call()
                taken[name].append(time.perf_counter() - began)
    return taken


def p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0
