"""The columns of the table: each promise, and whether the runs of a row kept it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.nemesis import windows
from tests.nemesis.faults.fault import Fault
from tests.nemesis.journal import Run
from tests.nemesis.tasks import TTL, limit_of

COLUMNS = (
    "at most `limit` inside",
    "fences rise",
    "lock free again",
    "task told of the loss",
    "no job twice at once",
    "no job lost",
    "waiting callers go on",
)
# A renewal every third of the ttl, and a third for its call; at a deadline a timer fires.
TOLD_BY_RENEWAL = 2 / 3 * TTL
TOLD_BY_TIMER = 0.5
# A requeued message comes back after a quarter of the visibility timeout, a waiter asks each second.
GO_ON = TTL


@dataclass(frozen=True)
class Observation:
    """What one row saw, in times of ``celery_locks.clock``.

    ``stall`` is the longest time for which the machine kept the observer waiting: a bound on time
    is missed only if it is missed by more.
    """

    fault: Fault
    runs: Sequence[Run]
    published: Sequence[str]
    locks: Sequence[str]  # that have a caller waiting, and whose jobs are short
    began: float
    healed: float
    stall: float


@dataclass(frozen=True)
class Cell:
    """What the table says of one promise under one fault; no time if there was no occasion."""

    holds: bool
    seconds: float | None = None
    count: int = 0

    def __str__(self) -> str:
        if not self.holds:
            return f"broken for {self.seconds:.1f} s" if self.seconds else f"broken: {self.count}"
        return "holds" if self.seconds is None else f"holds, {self.seconds:.1f} s"


def judge(seen: Observation) -> dict[str, Cell]:
    """Return the cell of each column."""
    fault, runs = seen.fault, seen.runs
    fences, lost = windows.fence_errors(runs), len(windows.lost_jobs(seen.published, runs))
    server_back = seen.healed if fault.cuts_off else -math.inf
    forgotten = {"at once": seen.began, "at its end": seen.healed}.get(fault.forgets, math.inf)
    awake = seen.healed if fault.stops else -math.inf
    cells = (
        _never(windows.crowded(runs, limit_of)),
        Cell(not fences, count=fences),
        _within(windows.freed_after(runs, limit_of, server_back), fault.free_within + seen.stall),
        _within(
            windows.told_after(runs, limit_of, forgotten, awake),
            (TOLD_BY_RENEWAL if fault.forgets else TOLD_BY_TIMER) + seen.stall,
        ),
        _never(windows.doubled(runs)),
        Cell(not lost, count=lost),
        _within(windows.continued_after(runs, seen.healed, seen.locks), GO_ON + seen.stall),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def _never(seconds: float) -> Cell:
    return Cell(False, seconds) if seconds else Cell(True)


def _within(seconds: float | None, bound: float) -> Cell:
    """A time, and whether it is within the promise."""
    return Cell(seconds is None or seconds <= bound, seconds)
