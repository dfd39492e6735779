"""How long a promise was broken, from the runs of a journal. Pure functions of numbers.

Each answers in seconds, or with None if there was no occasion: where no run was lost, no task had
to learn of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from tests.nemesis.journal import Run

Interval = tuple[float, float]


def seconds_above(limit: int, intervals: Sequence[Interval]) -> float:
    """Return for how long more than ``limit`` of the intervals were open at the same time."""
    steps = [(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals]
    # An interval that ends at a moment does not overlap with one that starts then.
    steps.sort()
    total, open_now = 0.0, 0
    for (at, change), (following, _) in itertools.pairwise(steps):
        open_now += change
        if open_now > limit:
            total += following - at
    return total


def crowded(runs: Iterable[Run], limit_of: Callable[[str], int]) -> float:
    """Return for how long a lock had more holders inside their own deadlines than its limit."""
    return math.fsum(
        seconds_above(
            limit_of(lock), [(run.start, max(run.start, run.inside_until)) for run in own]
        )
        for lock, own in _grouped(runs, lambda run: run.lock)
    )


def doubled(runs: Iterable[Run]) -> float:
    """Return for how long a job was at work twice at the same time, whatever its leases said."""
    return math.fsum(
        seconds_above(1, [(run.start, run.last_sign) for run in own])
        for _, own in _grouped(runs, lambda run: run.job)
    )


def freed_after(
    runs: Sequence[Run], limit_of: Callable[[str], int], server_back: float = -math.inf
) -> float | None:
    """Return the longest time from the last sign of a run that did not end to its lock's next run.

    If nobody could ask the lock server until ``server_back``, the time is counted from then. A lock
    that is never given again is taken until the end of the journal.
    """
    end = max((run.last_sign for run in runs), default=0.0)
    waits = [
        min(end, _next_start(runs, run, limit_of)) - max(run.last_sign, server_back)
        for run in runs
        if run.outcome != "ended" and limit_of(run.lock) == 1
    ]
    return max((max(0.0, wait) for wait in waits), default=None)


def learned_after(
    runs: Sequence[Run], limit_of: Callable[[str], int], forgotten: float = math.inf
) -> float | None:
    """Return the longest time from a loss to the last line of work of a run that was told of it.

    A lease is lost at its own deadline; earlier if the server forgot it (at ``forgotten``) or gave
    it to another. While a process asks the server whether it lost its lease, it does not work.
    """

    def lost_at(run: Run) -> float:
        known = forgotten if run.start <= forgotten else math.inf
        return min(run.deadline, known, _next_start(runs, run, limit_of))

    late = [max(0.0, run.last_sign - lost_at(run)) for run in runs if run.outcome == "lost"]
    return max(late, default=None)


def _next_start(runs: Iterable[Run], run: Run, limit_of: Callable[[str], int]) -> float:
    """Return when the lock was next given; a semaphore does not show whose slot was given."""
    if limit_of(run.lock) > 1:
        return math.inf
    later = [it.start for it in runs if it.lock == run.lock and it.fence > run.fence]
    return min(later, default=math.inf)


def continued_after(runs: Iterable[Run], healed: float, locks: Iterable[str]) -> float | None:
    """Return when all of the locks had a new run, counted from ``healed``; None if one had none."""
    first = {run.lock: run.start for run in reversed(list(runs)) if run.start > healed}
    if not set(locks) <= first.keys():
        return None
    return max(first[lock] for lock in locks) - healed


def lost_jobs(published: Iterable[str], runs: Iterable[Run]) -> list[str]:
    """Return the jobs that never came to their end."""
    ended = {run.job for run in runs if run.outcome == "ended"}
    return [job for job in published if job not in ended]


def fence_errors(runs: Iterable[Run], limit_of: Callable[[str], int]) -> int:
    """Count runs whose fence is not above that of each run of their lock that had ended before.

    Two holders at the same time write their lines in any order, but never with the same fence. A
    semaphore can grant a slot whose reply is lost, then another: the first to be granted starts
    last, when it has asked again. So there only the same fence is an error.
    """
    errors = 0
    for lock, own in _grouped(runs, lambda run: run.lock):
        for before, after in itertools.combinations(own, 2):
            is_later = limit_of(lock) == 1 and after.start >= before.last_sign
            errors += after.fence == before.fence or (is_later and after.fence < before.fence)
    return errors


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> Iterable[tuple[str, list[Run]]]:
    ordered = sorted(runs, key=lambda run: (key(run), run.start))
    return [(name, list(own)) for name, own in itertools.groupby(ordered, key)]
