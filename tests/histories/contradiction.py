"""The verdict about a lock, and the smallest part of its history that is already contradictory.

What a correct lock allows stays allowed if the end of the history is cut off, or if some callers
are left out with all that is said about them. So both are done for as long as the rest is
contradictory, and what is left is what somebody has to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tests.histories.checker import Checker, Undecided
from tests.histories.grants import may_be_regranted
from tests.histories.lock import Holders
from tests.histories.requests import History, Request

_MAX_STATES_OF_A_PART = 20_000


@dataclass(frozen=True)
class Contradiction:
    """Requests of one lock that no order explains; nobody knows what comes after ``holders``."""

    lock: str
    requests: tuple[Request, ...]
    holders: Holders

    def __str__(self) -> str:
        start = min(request.invoked for request in self.requests)
        lines = [f"lock {self.lock!r} is not linearizable; these requests have no order:"]
        lines += [f"  {shifted(request, start)}" for request in self.requests]
        names = ", ".join(f"{it.token[:8]} (fence {it.fence})" for it in self.holders)
        return "\n".join([*lines, f"  the longest order ends with the holders: {names or 'none'}"])


@dataclass(frozen=True)
class Verdict:
    """What the checker says about a run."""

    locks: int
    requests: int
    contradictions: tuple[Contradiction, ...] = ()
    undecided: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def is_linearizable(self) -> bool:
        return not self.contradictions and not self.undecided

    def __str__(self) -> str:
        result = "linearizable" if self.is_linearizable else "NOT linearizable"
        if self.undecided and not self.contradictions:
            result = f"undecided for {', '.join(self.undecided)}"
        more = f"; not checked: {', '.join(self.unchecked)}" if self.unchecked else ""
        lines = [f"{self.locks} locks, {self.requests} requests: {result}{more}"]
        return "\n".join([*lines, *map(str, self.contradictions)])

    def as_dict(self) -> dict[str, Any]:
        return {
            "locks": self.locks,
            "requests": self.requests,
            "linearizable": self.is_linearizable,
        }


def judge(history: History) -> Verdict:
    """Check every lock of a history."""
    contradictions, undecided = [], []
    for lock, requests in sorted(history.locks.items()):
        try:
            found = find_contradiction(requests)
        except Undecided:
            undecided.append(lock)
        else:
            contradictions += [found] if found else []
    unchecked = tuple(f"{lock} ({why})" for lock, why in sorted(history.unchecked.items()))
    count = sum(map(len, history.locks.values()))
    return Verdict(len(history.locks), count, tuple(contradictions), tuple(undecided), unchecked)


def find_contradiction(requests: Sequence[Request]) -> Contradiction | None:
    """Return None if the requests to one lock are linearizable, else the shortest part.

    At first no token counts as regranted; those that would explain a contradiction are added.
    """
    regranted: set[str] = set()
    while not Checker(requests, regranted).is_linearizable():
        part = _fewest_callers(_shortest_prefix(requests, regranted), regranted)
        more = may_be_regranted(requests) & {it.token for it in part} - regranted
        if not more:
            return Contradiction(requests[0].lock, tuple(part), _last_holders(part, regranted))
        regranted |= more
    return None


def _last_holders(requests: Sequence[Request], regranted: Set[str]) -> Holders:
    checker = Checker(requests, regranted)
    with suppress(Undecided):
        checker.is_linearizable()
    return checker.deepest.holders


def until(requests: Iterable[Request], moment: float) -> list[Request]:
    """Return what was known at that moment: later replies have not come yet."""
    return [
        it if it.replied <= moment else replace(it, replied=inf, reply=None)
        for it in requests
        if it.invoked <= moment
    ]


def only(requests: Sequence[Request], callers: set[str]) -> list[Request]:
    """Return the requests of some callers; replies that name others become unknown."""
    caller_of = _callers(requests)
    kept = [
        it for it in requests if caller_of[it.token] in callers or it.operation == "force_release"
    ]
    others = caller_of.keys() - {it.token for it in kept}
    return [
        replace(it, replied=inf, reply=None)
        if any(listed["token"].lstrip("-") in others for listed in it.listed)
        else it
        for it in kept
    ]


def shifted(request: Request, start: float) -> Request:
    """Return the request with its times counted from ``start``, for people."""
    return replace(request, invoked=request.invoked - start, replied=request.replied - start)


def _is_contradictory(requests: Sequence[Request], regranted: Set[str]) -> bool:
    """Return True if the part is surely contradictory, False if that takes too long to find out."""
    try:
        return not Checker(requests, regranted).is_linearizable(_MAX_STATES_OF_A_PART)
    except Undecided:
        return False


def _shortest_prefix(requests: Sequence[Request], regranted: Set[str]) -> list[Request]:
    moments = sorted({it.replied for it in requests if it.replied < inf})

    def is_enough(count: int) -> bool:
        return _is_contradictory(until(requests, moments[count - 1]), regranted)

    return until(requests, moments[_smallest(is_enough, len(moments)) - 1])


def _fewest_callers(requests: Sequence[Request], regranted: Set[str]) -> list[Request]:
    """Keep the latest callers that suffice, then leave out each that is not needed."""
    caller_of, by_sending = _callers(requests), sorted(requests, key=lambda it: it.invoked)
    latest = {caller_of[it.token]: it.invoked for it in by_sending}
    callers = sorted(latest, key=lambda caller: -latest[caller])

    def is_enough(count: int) -> bool:
        return _is_contradictory(only(requests, {*callers[:count]}), regranted)

    count = _smallest(is_enough, len(callers))
    needed = {*callers[:count]}
    for caller in callers[:count]:
        if _is_contradictory(only(requests, needed - {caller}), regranted):
            needed.remove(caller)
    return only(requests, needed)


def _smallest(is_enough: Callable[[int], bool], most: int) -> int:
    """Return the smallest count from 1 that is enough; all above it are, and ``most`` is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return high


def _callers(requests: Sequence[Request]) -> dict[str, str]:
    """Return who a token belongs to: a job, whose attempts take the lock over, or the token."""
    jobs = {it.token: it.job for it in requests if it.job != "-"}
    return {it.token: jobs.get(it.token, it.token) for it in requests}
