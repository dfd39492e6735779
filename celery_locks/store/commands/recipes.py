"""The commands of the recipes, in the same layout as those of the locks. Pure.

The contract of each script is at the head of its ``.lua`` file. Every call may be repeated: one
that is not idempotent by itself carries a ``request_id``, by which the server recognises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.calls import Call
from celery_locks.store.commands.locks import CALL_LIMIT, PAGE, LockCommands
from celery_locks.store.commands.requests import Mark, milliseconds
from celery_locks.store.resp import Arg
from celery_locks.store.scripts import PlainCommand
from celery_locks.validation import history_text

# Longer than a call and its retries can take.
_REMEMBERED_MS = 10_000
_STOCK_CHUNK = 1000
_GET, _HSCAN, _SCARD = PlainCommand("GET"), PlainCommand("HSCAN"), PlainCommand("SCARD")


class UserBuffer(NamedTuple):
    """The messages of one user of a buffer; ``name`` is the lock that protects them."""

    name: str
    buffer: str
    user: str


class CompletedPage(NamedTuple):
    """Names with seconds left, the start of the mark and its size; ``cursor`` is "" at the end."""

    found: list[tuple[str, float, bytes, int]]
    cursor: str


class RecipeCommands:
    """Builds the calls; ``name`` is always the name of a lock, which decides the shard."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands
        self.root = commands.root

    # Marks: completed work and claims.

    def claim(self, name: str, mark: Mark) -> Call:
        """Leave a mark if there is none: the mark that is there now."""
        args = (mark.mark, mark.value, milliseconds(mark.ttl))
        return Call(scripts.CLAIM, self.root(name), args, bytes.decode, CALL_LIMIT)

    def read(self, name: str, mark: str) -> Call:
        """Read a mark: its text, or None."""
        return Call(_GET, f"{self.root(name)}{mark}", (), _parse_text, CALL_LIMIT)

    def reset(self, name: str, mark: str, request_id: str, by: str = "", why: str = "") -> Call:
        """Delete a mark: True if there was one. Logged only with ``by``."""
        args = (mark, request_id, name, history_text("by", by), history_text("reason", why))
        return Call(scripts.RESET, self.root(name), args, _parse_bool, CALL_LIMIT)

    def completed_page(self, cursor: str = "", size: int = PAGE) -> Call:
        """Read a ``CompletedPage``; a cursor is the shard and the server's cursor in it."""
        shard, _, inner = (cursor or "0:0").partition(":")

        def parse(reply: Any) -> CompletedPage:
            rows = reply[2:]
            found = [
                (rows[i].decode(), rows[i + 1] / 1000, rows[i + 2], rows[i + 3])
                for i in range(0, len(rows), 4)
            ]
            return CompletedPage(found, self._commands.next_cursor(int(shard), reply[0].decode()))

        root = self._commands.roots[int(shard)]
        return Call(scripts.COMPLETED_PAGE, root, (inner, size), parse, CALL_LIMIT)

    # Lists.

    def drain(self, list_key: str, count: int, token: str) -> Call:
        """Take messages off a user's own list; its key is used as it is."""
        args = (count, _memo_key(list_key, token), _REMEMBERED_MS)
        return Call(scripts.DRAIN_LIST, list_key, args, list, CALL_LIMIT)

    def push(self, user_buffer: UserBuffer, message: str, request_id: str) -> Call:
        """Add a message: the number of messages that wait."""

        def parse(reply: Any) -> int:
            return int(reply[0])

        args = (*user_buffer, request_id, message)
        return Call(scripts.PUSH_MESSAGE, self.root(user_buffer.name), args, parse, CALL_LIMIT)

    def take_batch(self, user_buffer: UserBuffer, token: str, count: int) -> Call:
        """Take a batch: the messages, or None if the token does not hold the lock."""

        def parse(reply: Any) -> list[bytes] | None:
            return reply[1:] if reply[0] else None

        args = (*user_buffer, token, count)
        return Call(scripts.TAKE_BATCH, self.root(user_buffer.name), args, parse, CALL_LIMIT)

    def end_batch(
        self, user_buffer: UserBuffer, token: str, request_id: str, *, is_completed: bool
    ) -> Call:
        """Delete a completed batch or put it back: False if another caller may have had it."""
        args = (*user_buffer, token, int(is_completed), request_id)
        return Call(scripts.END_BATCH, self.root(user_buffer.name), args, _parse_bool, CALL_LIMIT)

    def buffered(self, buffer: str) -> list[Call]:
        """Return a call for each shard, which reads {user: number of messages}."""

        def parse(reply: Any) -> dict[str, int]:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            return {user.decode(): int(float(count)) for user, count in pairs}

        roots = self._commands.roots
        return [Call(scripts.BUFFERED, root, (buffer,), parse, CALL_LIMIT) for root in roots]

    # Inventory.

    def stock(self, name: str, items: Sequence[str]) -> list[Call]:
        """Return a call for each chunk of items, which adds them: the number of new items."""
        return [
            Call(
                scripts.STOCK_ITEMS,
                self.root(name),
                (name, *items[start : start + _STOCK_CHUNK]),
                int,
                CALL_LIMIT,
            )
            for start in range(0, len(items), _STOCK_CHUNK)
        ]

    def take(self, name: str, user: str, request_id: str) -> Call:
        """Take an item: (item, True if it is new), or the number of items sold if none is left."""

        def parse(reply: Any) -> tuple[str, bool] | int:
            item, number = reply[0].decode(), int(reply[1])
            return (item, number == 1) if item else number

        return Call(scripts.TAKE_ITEM, self.root(name), (name, user, request_id), parse, CALL_LIMIT)

    def give_back(self, name: str, user: str, request_id: str) -> Call:
        """Put a user's item back in stock: the item, or None."""

        def parse(reply: Any) -> str | None:
            return reply[0].decode() or None

        return Call(
            scripts.GIVE_BACK_ITEM, self.root(name), (name, user, request_id), parse, CALL_LIMIT
        )

    def sold(self, name: str, cursor: str) -> Call:
        """Read a page of the sold items: ({user: item}, next cursor, "0" at the end)."""

        def parse(reply: Any) -> tuple[dict[str, str], str]:
            texts = [text.decode() for text in reply[1]]
            return dict(zip(texts[::2], texts[1::2], strict=True)), reply[0].decode()

        args: tuple[Arg, ...] = (cursor, "COUNT", 500)
        return Call(_HSCAN, f"{self.root(name)}g:{name}", args, parse, CALL_LIMIT)

    def left(self, name: str) -> Call:
        return Call(_SCARD, f"{self.root(name)}s:{name}", (), int, CALL_LIMIT)


def _parse_bool(reply: Any) -> bool:
    return bool(int(reply[0]))


def _parse_text(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


def _memo_key(list_key: str, token: str) -> str:
    """Return a key in the same Cluster slot as the list.

    A list key with a brace but without a valid hash tag has a slot for which no such key exists.
    A Cluster refuses the call then, before any message is taken.
    """
    _, brace, rest = list_key.partition("{")
    tag, end, _ = rest.partition("}")
    if brace and end and tag:
        return f"{{{tag}}}:celery-locks:drained:{token}"
    tag = "" if "}" in list_key else f"{{{list_key}}}:"
    return f"{tag}celery-locks:drained:{token}"
