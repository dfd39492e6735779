"""Tickets: a stock that is never oversold, one item a user, and the record of who got what.

Each verb is one atomic step on the server. Items and users are texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from celery_locks.core.aio import AsyncLocks
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUsageError
from celery_locks.recipes.validation import check_key
from celery_locks.store.commands.recipes import RecipeCommands
from celery_locks.store.effects import Operation


@dataclass(frozen=True, slots=True)
class Taken:
    """What a user has: an item, new or from before, or none as all are sold. True with an item."""

    item: str | None
    status: Literal["taken", "already", "sold_out"]

    def __bool__(self) -> bool:
        return self.item is not None


class _InventoryOperations:
    def __init__(self, locks: Locks | AsyncLocks) -> None:
        self._verbs = RecipeCommands(locks.commands)

    def _stock(self, name: str, items: Iterable[str]) -> Operation[int]:
        check_key("a stock's name", name)
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise LockUsageError(f"the items of stock {name!r} must be a list, not {items!r}")
        listed = [check_key(f"an item of stock {name!r}", item) for item in items]
        if not listed:
            raise LockUsageError(f"there are no items to put in stock {name!r}")
        added = 0
        for call in self._verbs.stock(name, listed):
            added += yield call
        return added

    def _take(self, name: str, user: str) -> Operation[Taken]:
        answer = yield self._verbs.take(*_checked(name, user), new_token())
        if isinstance(answer, tuple):
            return Taken(answer[0], "taken" if answer[1] else "already")
        if not answer:
            raise LockUsageError(f"nothing was ever put in stock {name!r}")
        return Taken(None, "sold_out")

    def _give_back(self, name: str, user: str) -> Operation[str | None]:
        item: str | None = yield self._verbs.give_back(*_checked(name, user), new_token())
        return item

    def _sold(self, name: str) -> Operation[dict[str, str]]:
        check_key("a stock's name", name)
        found: dict[str, str] = {}
        cursor = "0"
        while True:
            page, cursor = yield self._verbs.sold(name, cursor)
            found |= page
            if cursor == "0":
                return found

    def _left(self, name: str) -> Operation[int]:
        left: int = yield self._verbs.left(check_key("a stock's name", name))
        return left


def _checked(name: object, user: object) -> tuple[str, str]:
    return check_key("a stock's name", name), check_key("a user of a stock", user)


class Inventory(_InventoryOperations):
    """Stocks by name, for code that blocks."""

    def __init__(self, locks: Locks) -> None:
        super().__init__(locks)
        self._locks = locks

    def stock(self, name: str, items: Iterable[str]) -> int:
        """Put items on sale; those that are, or are sold, are left as they are. Returns the new."""
        return self._locks.follow(self._stock(name, items))

    def take(self, name: str, user: str) -> Taken:
        """An item for the user: a new one, the one he has already, or none as all are sold.

        A name under which nothing was ever in stock is refused: it is a misspelt one.
        """
        return self._locks.follow(self._take(name, user))

    def give_back(self, name: str, user: str) -> str | None:
        """The user's item goes on sale again; returns it, or None if he has none."""
        return self._locks.follow(self._give_back(name, user))

    def sold(self, name: str) -> dict[str, str]:
        """Who got what. Read page by page: exact once nobody buys any more."""
        return self._locks.follow(self._sold(name))

    def left(self, name: str) -> int:
        return self._locks.follow(self._left(name))


class AsyncInventory(_InventoryOperations):
    """As ``Tickets``, awaited."""

    def __init__(self, locks: AsyncLocks) -> None:
        super().__init__(locks)
        self._locks = locks

    async def stock(self, name: str, items: Iterable[str]) -> int:
        return await self._locks.follow(self._stock(name, items))

    async def take(self, name: str, user: str) -> Taken:
        return await self._locks.follow(self._take(name, user))

    async def give_back(self, name: str, user: str) -> str | None:
        return await self._locks.follow(self._give_back(name, user))

    async def sold(self, name: str) -> dict[str, str]:
        return await self._locks.follow(self._sold(name))

    async def left(self, name: str) -> int:
        return await self._locks.follow(self._left(name))


# The former names, which users may have.
Tickets = Inventory
AsyncTickets = AsyncInventory
