"""Inventory: a stock that is never oversold, one item for each user, and a record of who has what.

Each method is one atomic step on the server. Items and users are strings.
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
    """The item that a user has, new or from before, or None if all are sold. True with an item."""

    item: str | None
    status: Literal["taken", "already", "sold_out"]

    def __bool__(self) -> bool:
        return self.item is not None


class _InventoryOperations:
    """The operations of both inventories."""

    def __init__(self, locks: Locks | AsyncLocks) -> None:
        self._commands = RecipeCommands(locks.commands)

    def _stock(self, name: str, items: Iterable[str]) -> Operation[int]:
        check_key("a stock's name", name)
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise LockUsageError(f"the items of stock {name!r} must be a list, not {items!r}")
        listed = [check_key(f"an item of stock {name!r}", item) for item in items]
        if not listed:
            raise LockUsageError(f"there are no items to put in stock {name!r}")
        added = 0
        for call in self._commands.stock(name, listed):
            added += yield call
        return added

    def _take(self, name: str, user: str) -> Operation[Taken]:
        answer = yield self._commands.take(*_check(name, user), new_token())
        if isinstance(answer, tuple):
            return Taken(answer[0], "taken" if answer[1] else "already")
        if not answer:
            raise LockUsageError(f"nothing was ever put in stock {name!r}")
        return Taken(None, "sold_out")

    def _give_back(self, name: str, user: str) -> Operation[str | None]:
        item: str | None = yield self._commands.give_back(*_check(name, user), new_token())
        return item

    def _sold(self, name: str) -> Operation[dict[str, str]]:
        check_key("a stock's name", name)
        found: dict[str, str] = {}
        cursor = "0"
        while True:
            page, cursor = yield self._commands.sold(name, cursor)
            found |= page
            if cursor == "0":
                return found

    def _left(self, name: str) -> Operation[int]:
        left: int = yield self._commands.left(check_key("a stock's name", name))
        return left


def _check(name: object, user: object) -> tuple[str, str]:
    return check_key("a stock's name", name), check_key("a user of a stock", user)


class Inventory(_InventoryOperations):
    """Stocks by name, for blocking code."""

    def __init__(self, locks: Locks) -> None:
        super().__init__(locks)
        self._locks = locks

    def stock(self, name: str, items: Iterable[str]) -> int:
        """Put items in stock and return the number of new ones; known and sold items stay as is."""
        return self._locks.run(self._stock(name, items))

    def take(self, name: str, user: str) -> Taken:
        """Take an item for the user: a new one, the one they have, or none if all are sold.

        A name that never had a stock is refused: it is probably misspelt.
        """
        return self._locks.run(self._take(name, user))

    def give_back(self, name: str, user: str) -> str | None:
        """Put the user's item back in stock and return it, or None if they have none."""
        return self._locks.run(self._give_back(name, user))

    def sold(self, name: str) -> dict[str, str]:
        """Return {user: item}, read page by page: exact only while nobody takes items."""
        return self._locks.run(self._sold(name))

    def left(self, name: str) -> int:
        return self._locks.run(self._left(name))


class AsyncInventory(_InventoryOperations):
    """``Inventory`` for asyncio."""

    def __init__(self, locks: AsyncLocks) -> None:
        super().__init__(locks)
        self._locks = locks

    async def stock(self, name: str, items: Iterable[str]) -> int:
        return await self._locks.run(self._stock(name, items))

    async def take(self, name: str, user: str) -> Taken:
        return await self._locks.run(self._take(name, user))

    async def give_back(self, name: str, user: str) -> str | None:
        return await self._locks.run(self._give_back(name, user))

    async def sold(self, name: str) -> dict[str, str]:
        return await self._locks.run(self._sold(name))

    async def left(self, name: str) -> int:
        return await self._locks.run(self._left(name))


# Aliases that user code may import.
Tickets = Inventory
AsyncTickets = AsyncInventory
