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
from celery_locks.store.base import Call, Store
from celery_locks.store.verbs import Mark, Verbs
from celery_locks.text import printable

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
    has_failed: bool = False  # in a way that nobody foresaw, which is logged once

    def plan_again(self) -> None:
        self.due = now() + self.pause
        self.pause *= 2

    def call(self, budget: float) -> Call:
        """The release, as it is to be sent now."""
        return self.verbs.release(
            self.name,
            self.token,
            keep=max(0.0, self.kept_until - now()),
            keep_as=self.keep_as,
            marks=self.marks,
            past=self.past,
            budget=budget,
        )

    def tell_if_unpaid(self) -> None:
        if self.trouble:
            logger.warning(
                "lock %r could not be given back and lapses: %s",
                self.name,
                printable(self.trouble),
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
        owed = by_place([debt for debt in list(self.values()) if debt.due <= moment], self._drop)
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
                if debt.has_failed:
                    debt.plan_again()
                    continue
                for unpaid in debts:
                    unpaid.due = now() + 0.25
                return
            if debt.doubtful:
                debt.plan_again()
                self[debt.token] = debt

    def _paid(self, debt: Debt, budget: float) -> bool:
        """False if it is to be tried again."""
        try:
            call = debt.call(budget)
        except Exception:  # noqa: BLE001
            self._drop(debt)
            return True
        try:
            debt.store.perform(call)
        except LockUnavailable as error:
            debt.trouble = str(error)
            return False
        except Exception as error:
            if not debt.has_failed:
                logger.exception("giving lock %r back failed in an unforeseen way", debt.name)
            debt.has_failed, debt.trouble = True, repr(error)
            return False
        debt.has_failed, debt.trouble = False, ""
        return True

    def _drop(self, debt: Debt) -> None:
        """No release can be made of it, now or later: nobody can hold a lock of such a name."""
        logger.exception("lock %r cannot be given back: no call can be made of it", debt.name)
        debt.trouble, debt.doubtful = "", False
        if self.get(debt.token) is debt:
            self.pop(debt.token)

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


def by_place(things: Iterable[P], drop: Callable[[P], None]) -> list[list[P]]:
    """Those of one store and shard together: they are reached or not reached together.

    ``drop`` is called, while its error is handled, for a thing whose name has no shard.
    """
    places: dict[tuple[int, str], list[P]] = {}
    for thing in things:
        try:
            place = (id(thing.store), thing.verbs.root(thing.name))
        except Exception:  # noqa: BLE001 (one wrong name must not cost the others their turn)
            drop(thing)
        else:
            places.setdefault(place, []).append(thing)
    return list(places.values())
