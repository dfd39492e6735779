"""drain: take messages off a user's own Redis list, in one step."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, overload

from celery_locks.core.aio import AsyncLocks
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.recipes.validation import check_count, check_key
from celery_locks.store.commands.recipes import RecipeCommands
from celery_locks.store.effects import Operation


@overload
def drain(locks: Locks, list_key: str, count: int) -> list[bytes]: ...
@overload
def drain(locks: AsyncLocks, list_key: str, count: int) -> Awaitable[list[bytes]]: ...
def drain(locks: Locks | AsyncLocks, list_key: str, count: int) -> Any:
    """Take up to ``count`` messages off the head of the list at this key, in order, as bytes.

    No two callers get the same message. If the reply is lost, the call is repeated and gets the
    same messages. From then on only the caller has them: if it dies, they are lost. If that must
    not happen, use ``Buffer``.
    """
    call = RecipeCommands(locks.commands).drain(
        check_key("drain", list_key), check_count("count of drain", count), new_token()
    )

    def operation() -> Operation[list[bytes]]:
        messages: list[bytes] = yield call
        return messages

    return locks.run(operation())
