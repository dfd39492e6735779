"""The commands of the recipes, in the same layout as those of the locks. Pure.

The contract of each script is at the head of its ``.lua`` file. Every call may be repeated: one
that is not idempotent by itself carries a ``request_id``, by which the server recognises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, PAGE, LockCommands, Mark, milliseconds
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import Arg, PlainCommand
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

    def keys(self, root: str) -> tuple[str, str, str]:
        """Return the redis keys of the messages; see ``batches.lua``."""
        return f"{root}l:{self.name}", f"{root}f:{self.name}", f"{root}u:{self.buffer}"


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
        root, args = self.root(name), (mark.value, milliseconds(mark.ttl))
        return Call(scripts.CLAIM, root, (root + mark.key,), args, bytes.decode, CALL_LIMIT)

    def read(self, name: str, mark: str) -> Call:
        """Read a mark: its text, or None."""
        root = self.root(name)
        return Call(_GET, root, (root + mark,), (), _parse_text, CALL_LIMIT)

    def reset(self, name: str, mark: str, request_id: str, by: str = "", why: str = "") -> Call:
        """Delete a mark: True if there was one. Logged only with ``by``."""
        root, args = self.root(name), (name, history_text("by", by), history_text("reason", why))
        keys = (root + mark, f"{root}p:{request_id}")
        return Call(scripts.DELETE_MARK, root, keys, args, _parse_bool, CALL_LIMIT)

    def completed_page(self, cursor: str = "", size: int = PAGE) -> Operation[CompletedPage]:
        """Read a ``CompletedPage``; names first, so that the second call declares its keys."""
        root, names, cursor = yield from self._commands.names("completed", cursor, size)
        if not names:
            return CompletedPage([], cursor)

        def parse(reply: Any) -> list[tuple[str, float, bytes, int]]:
            marks = zip(names, reply, strict=True)
            return [(name, mark[0] / 1000, mark[1], mark[2]) for name, mark in marks if mark]

        keys = tuple(f"{root}o:{name}" for name in names)
        found = yield Call(scripts.COMPLETED_PAGE, root, keys, (), parse, CALL_LIMIT)
        return CompletedPage(found, cursor)

    # Lists.

    def drain(self, list_key: str, count: int, token: str) -> Call:
        """Take messages off a user's own list; its key is used as it is."""
        keys, args = (list_key, _memo_key(list_key, token)), (count, _REMEMBERED_MS)
        return Call(scripts.DRAIN_LIST, list_key, keys, args, list, CALL_LIMIT)

    def push(self, user_buffer: UserBuffer, message: str, request_id: str) -> Call:
        """Add a message: the number of messages that wait."""

        def parse(reply: Any) -> int:
            return int(reply[0])

        name, _, user = user_buffer
        root = self.root(name)
        keys = (f"{root}h:{name}", *user_buffer.keys(root), f"{root}p:{request_id}")
        return Call(scripts.BUFFER_PUSH, root, keys, (user, message), parse, CALL_LIMIT)

    def take_batch(self, user_buffer: UserBuffer, token: str, count: int) -> Call:
        """Take a batch: the messages, or None if the token does not hold the lock."""

        def parse(reply: Any) -> list[bytes] | None:
            return reply[1:] if reply[0] else None

        name, _, user = user_buffer
        root = self.root(name)
        keys = (f"{root}h:{name}", *user_buffer.keys(root))
        return Call(scripts.TAKE_BATCH, root, keys, (user, token, count), parse, CALL_LIMIT)

    def end_batch(
        self, user_buffer: UserBuffer, token: str, request_id: str, *, is_completed: bool
    ) -> Call:
        """Delete a completed batch or put it back: False if another caller may have had it."""
        root = self.root(user_buffer.name)
        keys = (*user_buffer.keys(root), f"{root}p:{request_id}")
        args = (user_buffer.user, token, int(is_completed))
        return Call(scripts.END_BATCH, root, keys, args, _parse_bool, CALL_LIMIT)

    def buffered(self, buffer: str) -> list[Call]:
        """Return a call for each shard, which reads {user: number of messages}, the most first."""

        def parse(reply: Any) -> dict[str, int]:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            return {user.decode(): int(float(count)) for user, count in pairs}

        return [
            Call(scripts.BUFFER_USERS, root, (f"{root}u:{buffer}",), (), parse, CALL_LIMIT)
            for root in self._commands.roots
        ]

    # Inventory.

    def stock(self, name: str, items: Sequence[str]) -> list[Call]:
        """Return a call for each chunk of items, which adds them: the number of new items."""
        root = self.root(name)
        keys = (f"{root}s:{name}", f"{root}i:{name}")
        chunks = (items[i : i + _STOCK_CHUNK] for i in range(0, len(items), _STOCK_CHUNK))
        return [
            Call(scripts.STOCK_ITEMS, root, keys, tuple(chunk), int, CALL_LIMIT) for chunk in chunks
        ]

    def take(self, name: str, user: str, request_id: str) -> Call:
        """Take an item: (item, True if it is new), or the number of items sold if none is left."""

        def parse(reply: Any) -> tuple[str, bool] | int:
            item, number = reply[0].decode(), int(reply[1])
            return (item, number == 1) if item else number

        root, keys = self._inventory_keys(name, request_id)
        return Call(scripts.TAKE_ITEM, root, keys, (user,), parse, CALL_LIMIT)

    def give_back(self, name: str, user: str, request_id: str) -> Call:
        """Put a user's item back in stock: the item, or None."""

        def parse(reply: Any) -> str | None:
            return reply[0].decode() or None

        root, keys = self._inventory_keys(name, request_id)
        return Call(scripts.GIVE_BACK_ITEM, root, keys, (user,), parse, CALL_LIMIT)

    def _inventory_keys(self, name: str, request_id: str) -> tuple[str, tuple[str, ...]]:
        root = self.root(name)
        return root, (*(f"{root}{kind}:{name}" for kind in "sgi"), f"{root}p:{request_id}")

    def sold(self, name: str, cursor: str) -> Call:
        """Read a page of the sold items: ({user: item}, next cursor, "0" at the end)."""

        def parse(reply: Any) -> tuple[dict[str, str], str]:
            texts = [text.decode() for text in reply[1]]
            return dict(zip(texts[::2], texts[1::2], strict=True)), reply[0].decode()

        args: tuple[Arg, ...] = (cursor, "COUNT", 500)
        root = self.root(name)
        return Call(_HSCAN, root, (f"{root}g:{name}",), args, parse, CALL_LIMIT)

    def left(self, name: str) -> Call:
        root = self.root(name)
        return Call(_SCARD, root, (f"{root}s:{name}",), (), int, CALL_LIMIT)


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
