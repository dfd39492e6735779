"""The checker on random histories in virtual time: of a correct lock, and of locks with a mistake.

The mistakes are also a check of the shortcuts: with them and without them the search must come to
the same verdict.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.histories import checker
from tests.histories.checker import Checker, Undecided
from tests.histories.contradiction import find_contradiction
from tests.histories.requests import Request
from tests.support.simulated_lock import SimulatedLock, history


class IgnoresLimit(SimulatedLock):
    def fits(self, limit: int) -> bool:
        return True


class ReleasesByName(SimulatedLock):
    def execute(self, request: Request, now: float) -> dict[str, Any]:
        if request.operation == "release":
            self.holders.clear()
        return super().execute(request, now)


class LapsesEarly(SimulatedLock):
    def execute(self, request: Request, now: float) -> dict[str, Any]:
        for token, (expiry, *rest) in list(self.holders.items()):
            if expiry - 1.2 < now:
                self.holders[token] = (now, *rest)  # type: ignore[assignment]
        return super().execute(request, now)


class NeverLapses(SimulatedLock):
    def execute(self, request: Request, now: float) -> dict[str, Any]:
        return super().execute(request, 0.0)


class ForgetsRelease(SimulatedLock):
    def execute(self, request: Request, now: float) -> dict[str, Any]:
        kept = dict(self.holders)
        reply = super().execute(request, now)
        self.holders |= {} if request.operation == "acquire" else kept
        return reply


class CountsDown(SimulatedLock):
    def __init__(self) -> None:
        super().__init__()
        self.fences = itertools.count(10_000, -1)


MISTAKES = [IgnoresLimit, ReleasesByName, LapsesEarly, NeverLapses, ForgetsRelease, CountsDown]


@pytest.mark.parametrize("seed", range(40))
def test_every_history_of_a_correct_lock_is_accepted(seed: int) -> None:
    """Replies and requests are lost, and requests are executed late, in every one of them."""
    found = find_contradiction(history(seed))
    assert found is None, str(found)


@pytest.mark.parametrize("lock", MISTAKES)
def test_lock_with_a_mistake_is_rejected(lock: type[SimulatedLock]) -> None:
    """In a few runs each mistake shows; a history in which it does not is correct."""
    rejected = [seed for seed in range(8) if find_contradiction(history(seed, lock()))]
    assert rejected


class NoPruning:
    """Tries every order."""

    def __init__(self, *_: Any) -> None: ...

    def may_end(self, *_: Any) -> bool:
        return True

    may_extend = may_grant = may_end


@pytest.mark.parametrize("lock", [SimulatedLock, *MISTAKES])
def test_shortcuts_do_not_change_the_verdict(
    lock: type[SimulatedLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shortcut that skips the only order would convict a correct lock, or free a broken one."""
    histories = [history(seed, lock(), clients=3, seconds=1.5) for seed in range(60)]
    quick = [Checker(requests).is_linearizable() for requests in histories]
    monkeypatch.setattr(checker, "Pruning", NoPruning)
    monkeypatch.setattr(Checker, "_may_come_first", lambda *_: False)
    compared = 0
    for verdict, requests in zip(quick, histories, strict=True):
        try:
            assert Checker(requests).is_linearizable(max_states=20_000) == verdict
            compared += 1
        except Undecided:
            continue
    assert compared > 30
