"""The verbs of the recipes as calls, over the same layout as those of the locks. Pure.

The contract of each script stands at the head of its ``.lua`` file. Each may be performed again:
what is not so by itself carries a token, ``question``, by which the server knows it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, PAGE, LockCommands, Mark
from celery_locks.store.effects import Call
from celery_locks.store.resp import Arg
from celery_locks.store.scripts import Command
from celery_locks.validation import history_text

# Longer than a call and its repetitions can take.
_REMEMBERED_MS = 10_000
_STOCK_CHUNK = 1000
_GET, _HSCAN, _SCARD = Command("GET"), Command("HSCAN"), Command("SCARD")


class Place(NamedTuple):
    """Where the messages of one user of a buffer are: beside his lock, ``name``."""

    name: str
    buffer: str
    user: str


class DonePage(NamedTuple):
    """Names with seconds left, the head of the mark and its size; ``cursor`` is "" at the end."""

    found: list[tuple[str, float, bytes, int]]
    cursor: str


class RecipeCommands:
    """Builds the calls; ``name`` is always a lock's, which decides the shard."""

    def __init__(self, commands: LockCommands) -> None:
        self._verbs = commands
        self.root = commands.root

    # Marks: done work and claims.

    def claim(self, name: str, mark: Mark) -> Call:
        """Answers with the mark that is there then."""
        args = (mark.mark, mark.value, _ms(mark.ttl))
        return Call(scripts.CLAIM, self.root(name), args, bytes.decode, CALL_LIMIT)

    def read(self, name: str, mark: str) -> Call:
        """Answers with the mark, or None."""
        return Call(_GET, f"{self.root(name)}{mark}", (), _text, CALL_LIMIT)

    def reset(self, name: str, mark: str, question: str, by: str = "", why: str = "") -> Call:
        """Answers whether there was one; goes into the history if it is said by whom."""
        args = (mark, question, name, history_text("by", by), history_text("reason", why))
        return Call(scripts.RESET, self.root(name), args, _truth, CALL_LIMIT)

    def done_page(self, cursor: str = "", size: int = PAGE) -> Call:
        """Answers with a ``DonePage``; its cursor names the shard and the place in it."""
        shard, _, inner = (cursor or "0:0").partition(":")

        def parse(reply: Any) -> DonePage:
            rows = reply[2:]
            found = [
                (rows[i].decode(), rows[i + 1] / 1000, rows[i + 2], rows[i + 3])
                for i in range(0, len(rows), 4)
            ]
            return DonePage(found, self._verbs.following(int(shard), reply[0].decode()))

        root = self._verbs.roots[int(shard)]
        return Call(scripts.DONE_PAGE, root, (inner, size), parse, CALL_LIMIT)

    # Lists.

    def drain(self, list_key: str, count: int, token: str) -> Call:
        """Of a list that is not ours: its key is used as it is."""
        args = (count, _memo(list_key, token), _REMEMBERED_MS)
        return Call(scripts.DRAIN, list_key, args, list, CALL_LIMIT)

    def push(self, place: Place, message: str, question: str) -> Call:
        """Answers with the number of messages that wait."""

        def parse(reply: Any) -> int:
            return int(reply[0])

        args = (*place, question, message)
        return Call(scripts.PUSH, self.root(place.name), args, parse, CALL_LIMIT)

    def take_batch(self, place: Place, token: str, count: int) -> Call:
        """Answers with the messages, or None if the token does not hold the lock."""

        def parse(reply: Any) -> list[bytes] | None:
            return reply[1:] if reply[0] else None

        args = (*place, token, count)
        return Call(scripts.TAKE_BATCH, self.root(place.name), args, parse, CALL_LIMIT)

    def end_batch(self, place: Place, token: str, question: str, *, done: bool) -> Call:
        """Answers False if another has, or may have had, the batch by now."""
        args = (*place, token, int(done), question)
        return Call(scripts.END_BATCH, self.root(place.name), args, _truth, CALL_LIMIT)

    def buffered(self, buffer: str) -> list[Call]:
        """A call for each shard; each answers with {user: number of messages}."""

        def parse(reply: Any) -> dict[str, int]:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            return {user.decode(): int(float(count)) for user, count in pairs}

        roots = self._verbs.roots
        return [Call(scripts.BUFFERED, root, (buffer,), parse, CALL_LIMIT) for root in roots]

    # Tickets.

    def stock(self, name: str, items: Sequence[str]) -> list[Call]:
        """A call for each chunk; each answers with how many of its items are new."""
        return [
            Call(
                scripts.STOCK,
                self.root(name),
                (name, *items[start : start + _STOCK_CHUNK]),
                int,
                CALL_LIMIT,
            )
            for start in range(0, len(items), _STOCK_CHUNK)
        ]

    def take(self, name: str, user: str, question: str) -> Call:
        """Answers with (item, whether it is new), or with the number of items sold: none left."""

        def parse(reply: Any) -> tuple[str, bool] | int:
            item, number = reply[0].decode(), int(reply[1])
            return (item, number == 1) if item else number

        return Call(scripts.TAKE, self.root(name), (name, user, question), parse, CALL_LIMIT)

    def give_back(self, name: str, user: str, question: str) -> Call:
        """Answers with the item, or None."""

        def parse(reply: Any) -> str | None:
            return reply[0].decode() or None

        return Call(scripts.GIVE_BACK, self.root(name), (name, user, question), parse, CALL_LIMIT)

    def sold(self, name: str, cursor: str) -> Call:
        """Answers with ({user: item}, next cursor, "0" at the end)."""

        def parse(reply: Any) -> tuple[dict[str, str], str]:
            texts = [text.decode() for text in reply[1]]
            return dict(zip(texts[::2], texts[1::2], strict=True)), reply[0].decode()

        args: tuple[Arg, ...] = (cursor, "COUNT", 500)
        return Call(_HSCAN, f"{self.root(name)}g:{name}", args, parse, CALL_LIMIT)

    def left(self, name: str) -> Call:
        return Call(_SCARD, f"{self.root(name)}s:{name}", (), int, CALL_LIMIT)


def _truth(reply: Any) -> bool:
    return bool(int(reply[0]))


def _text(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _memo(list_key: str, token: str) -> str:
    """A key in the list's own slot.

    With a brace that leaves no room for a tag, the list has a slot for which there is no such key:
    a Cluster refuses the call, before anything is taken.
    """
    _, brace, rest = list_key.partition("{")
    tag, end, _ = rest.partition("}")
    if brace and end and tag:
        return f"{{{tag}}}:celery-locks:drained:{token}"
    place = "" if "}" in list_key else f"{{{list_key}}}:"
    return f"{place}celery-locks:drained:{token}"
