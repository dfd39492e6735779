"""The verbs of operators as calls, over the same layout as those of the locks. Pure.

The contract of each script stands at the head of its ``.lua`` file. What everybody may ask and do
(info, the list, stop) is with the others in ``verbs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, PAGE, LockCommands
from celery_locks.store.effects import Call
from celery_locks.store.records import act_of, holders_of
from celery_locks.types import HistoryEntry, Holder
from celery_locks.validation import history_text

# An act names up to sixteen holders.
HISTORY_PAGE = 50
# What trim.lua clears up, in the order in which it has to be done.
TRIMMED = ("records", "index", "stops", "done")


class Trimmed(NamedTuple):
    """A step of clearing up: where it goes on ("0": at the end), and how many entries it found."""

    cursor: str
    entries: int


class HistoryPage(NamedTuple):
    """Acts, the latest first; the next page is from before the id ``before``, "" at the end."""

    acts: list[HistoryEntry]
    before: str


class AdminCommands:
    """Builds the calls; ``root`` is one shard's."""

    def __init__(self, commands: LockCommands) -> None:
        self._verbs = commands

    def force_release(
        self, name: str, token: str = "", by: str = "", why: str = "", *, question: str
    ) -> Call:
        """Answers with the holders that had it; ``by`` and ``why`` go into the log.

        ``question`` is a token of its own, by which the server knows a repeated question.
        """

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        args = (name, token, history_text("by", by), history_text("reason", why), question)
        return Call(scripts.FORCE_RELEASE, self._verbs.root(name), args, parse, CALL_LIMIT)

    def history(
        self,
        root: str,
        before: str = "",
        size: int = HISTORY_PAGE,
        of: Literal["log", "past"] = "log",
    ) -> Call:
        """Answers with a ``HistoryPage`` of one shard, from before the id given."""

        def parse(reply: Any) -> HistoryPage:
            acts = [act_of(identifier, fields) for identifier, fields in reply[1:]]
            return HistoryPage(acts, acts[-1].id if reply[0] and acts else "")

        args = (f"({before}" if before else "+", size, of)
        return Call(scripts.HISTORY, root, args, parse, CALL_LIMIT)

    def usual(self, root: str, tasks: Sequence[str] = ()) -> Call:
        """Answers with task → its last holds in seconds, of one shard; of all tasks if none."""

        def parse(reply: Any) -> dict[str, list[float]]:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            found = {task.decode(): [int(ms) / 1000 for ms in said.split()] for task, said in pairs}
            return {task: holds for task, holds in found.items() if holds}

        return Call(scripts.USUAL, root, tuple(tasks), parse, CALL_LIMIT)

    def trim(self, root: str, part: str, cursor: str = "0", *, dry_run: bool = False) -> Call:
        """Answers with ``Trimmed``; with ``dry_run`` nothing is removed."""

        def parse(reply: Any) -> Trimmed:
            return Trimmed(reply[0].decode(), reply[1])

        return Call(scripts.TRIM, root, (part, cursor, PAGE, int(not dry_run)), parse, CALL_LIMIT)

    def server(self, root: str) -> Call:
        """Answers with what the server of a shard says of itself (INFO), as a mapping."""

        def parse(reply: Any) -> dict[str, str]:
            lines = (line.partition(":") for line in reply.decode().splitlines())
            return {word: value for word, colon, value in lines if colon}

        return Call(scripts.SERVER, root, (), parse, CALL_LIMIT)
