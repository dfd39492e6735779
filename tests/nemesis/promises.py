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
    "task learns of a loss",
    "no job twice at once",
    "no job lost",
    "waiting callers go on",
)
# A renewal every third of the ttl, and a third for its call; at a deadline a timer fires.
LEARNED_BY_RENEWAL = 2 / 3 * TTL
LEARNED_BY_TIMER = 0.5
# After a loss of data nobody is granted a lock for a ttl; a requeued message returns after a
# quarter of the visibility timeout, a waiter asks each second.
GO_ON = TTL + 1.0


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
    """What the table says of one promise under one fault.

    ``seconds`` is the time that was measured, ``count`` how many runs or jobs broke the promise.
    """

    holds: bool
    seconds: float | None = None
    count: int = 0
    occasion: bool = True

    def __str__(self) -> str:
        time = "" if self.seconds is None else _time(self.seconds)
        if not self.occasion:
            return "–"
        if self.holds:
            return f"holds, {time}" if time else "holds"
        return f"broken for {time}" if time else f"broken: {self.count}"


def _time(seconds: float) -> str:
    """Return a time that is never rounded down to nothing."""
    return "< 0.1 s" if 0.0 < seconds < 0.05 else f"{seconds:.1f} s"


NO_OCCASION = Cell(True, occasion=False)


def judge(seen: Observation) -> dict[str, Cell]:
    """Return the cell of each column."""
    fault, runs = seen.fault, seen.runs
    fences, lost = (
        windows.fence_errors(runs, limit_of),
        len(windows.lost_jobs(seen.published, runs)),
    )
    server_back = seen.healed if fault.cuts_off else -math.inf
    forgotten = {"at once": seen.began, "at its end": seen.healed}.get(fault.forgets, math.inf)
    cells = (
        _never(windows.crowded(runs, limit_of)),
        Cell(not fences, count=fences),
        _within(windows.freed_after(runs, limit_of, server_back), fault.free_within + seen.stall),
        _within(
            windows.learned_after(runs, limit_of, forgotten),
            (LEARNED_BY_RENEWAL if fault.forgets else LEARNED_BY_TIMER) + seen.stall,
        ),
        _never(windows.doubled(runs)),
        Cell(not lost, count=lost),
        _going_on(seen),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def _never(seconds: float) -> Cell:
    return Cell(False, seconds) if seconds else Cell(True)


def _within(seconds: float | None, bound: float) -> Cell:
    """A time, and whether it is within the promise; none if nobody lost a lock."""
    return NO_OCCASION if seconds is None else Cell(seconds <= bound, seconds)


def _going_on(seen: Observation) -> Cell:
    after = windows.continued_after(seen.runs, seen.healed, seen.locks)
    if after is None:  # until the end of the row
        return Cell(False, max(run.last_sign for run in seen.runs) - seen.healed)
    return _within(after, GO_ON + seen.stall)
