"""What could not be given back: a release that failed, a grant whose answer never came.

The keeper's thread goes on trying until the lock would have lapsed anyway.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.store.base import Store
from celery_locks.store.verbs import Mark, Verbs

logger = logging.getLogger("celery_locks")


@dataclass(slots=True)
class Debt:
    """Something to be given back, as long as that makes a difference.

    A question that was never answered may still be on its way, in a buffer of the network or of a
    server that stands still, and be granted after the give-back. What is ``doubtful`` in this way
    is given back again, ever more rarely, for as long as such a grant could last.
    """

    name: str
    token: str
    store: Store
    verbs: Verbs
    until: float
    doubtful: bool = False
    kept_until: float = 0.0
    keep_as: str = ""
    marks: Sequence[Mark] = ()
    past: str | None = None
    due: float = field(default_factory=now)
    pause: float = 0.25
    trouble: str = "no time was left"  # empty once it was paid

    def plan_again(self) -> None:
        self.due = now() + self.pause
        self.pause *= 2

    def tell_if_unpaid(self) -> None:
        if self.trouble:
            logger.warning(
                "lock %r could not be given back and lapses: %s",
                self.name,
                self.trouble,
                extra={"event": "lapses", "lock": self.name},
            )


class Debts(dict[str, Debt]):
    """By token. Others add to them at any time; only the keeper's thread pays and forgets them."""

    @property
    def due(self) -> float:
        """When the first one is."""
        return min((debt.due for debt in list(self.values())), default=math.inf)

    @property
    def unpaid(self) -> bool:
        return any(debt.trouble for debt in list(self.values()))

    def tell_of_unpaid(self) -> None:
        for debt in list(self.values()):
            debt.tell_if_unpaid()

    def pay(self, patience: Callable[[int], float]) -> None:
        """What is due, within the time that the keeper has for so many calls."""
        self._forget_old()
        moment = now()
        owed = by_place([debt for debt in list(self.values()) if debt.due <= moment])
        # Half of what a call may take: the renewals wait meanwhile.
        budget = patience(2 * len(owed))
        for debts in owed:
            self._pay(debts, now() + budget)

    def _pay(self, debts: list[Debt], until: float) -> None:
        """What one place is owed. Once it does not answer, the rest would only cost time too."""
        for debt in debts:
            if now() >= until:
                return
            is_paid = self._paid(debt, until - now())
            there = self.pop(debt.token, debt)
            if there is not debt:
                self.setdefault(debt.token, there)  # more is owed for it by now
                continue
            if not is_paid:
                self[debt.token] = debt  # last in line: it may be alone in its trouble
                for unpaid in debts:
                    unpaid.due = now() + 0.25
                return
            if debt.doubtful:
                debt.plan_again()
                self[debt.token] = debt

    def _paid(self, debt: Debt, budget: float) -> bool:
        try:
            keep = max(0.0, debt.kept_until - now())
            call = debt.verbs.release(
                debt.name,
                debt.token,
                keep=keep,
                keep_as=debt.keep_as,
                marks=debt.marks,
                past=debt.past,
                budget=budget,
            )
            debt.store.perform(call)
        except Exception as error:
            if not isinstance(error, LockUnavailable):
                logger.exception("giving lock %r back failed in an unforeseen way", debt.name)
            debt.trouble = str(error)
            return False
        debt.trouble = ""
        return True

    def _forget_old(self) -> None:
        for debt in [debt for debt in list(self.values()) if debt.until <= now()]:
            self.pop(debt.token, None)
            debt.tell_if_unpaid()


class _Placed(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def verbs(self) -> Verbs: ...


P = TypeVar("P", bound=_Placed)


def by_place(things: Iterable[P]) -> list[list[P]]:
    """Those of one store and shard together: they are reached or not reached together."""
    places: dict[tuple[int, str], list[P]] = {}
    for thing in things:
        places.setdefault((id(thing.store), thing.verbs.root(thing.name)), []).append(thing)
    return list(places.values())
