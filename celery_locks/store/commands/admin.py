"""The commands of operators and of the cleanup, in the same layout as those of the locks. Pure.

The contract of each script is at the head of its ``.lua`` file. The commands that holders use too
(info, the list, stop) are in ``locks.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from celery_locks.errors import LockUsageError
from celery_locks.store import scripts
from celery_locks.store.commands.locks import (
    CALL_LIMIT,
    PAGE,
    LockCommands,
    lock_keys,
    milliseconds,
)
from celery_locks.store.commands.replies import history_entry_of, holders_of, name_in, override_of
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import Arg, PlainCommand
from celery_locks.types import HistoryEntry, Holder, Override
from celery_locks.validation import history_text

# An entry has up to sixteen holders.
HISTORY_PAGE = 50
# What prune.lua deletes from, in the order that it needs.
PRUNED_KEYS = ("records", "index", "completed", "patterns")
# Seconds after which a lapsed name is deleted; FORGET_MS in prune.lua is the same number.
FORGET = 60
OverrideAction = Literal["pause", "resume", "limit", "limit_reset"]
_HSCAN, _ZSCAN = PlainCommand("HSCAN"), PlainCommand("ZSCAN")
_ZRANGEBYSCORE, _CONFIG = PlainCommand("ZRANGEBYSCORE"), PlainCommand("CONFIG")


class PruneStep(NamedTuple):
    """One step of pruning: the next cursor ("0" at the end) and the number of entries found."""

    cursor: str
    entries: int


class HistoryPage(NamedTuple):
    """Entries, the latest first; the next page is before the id ``before``, "" at the end."""

    entries: list[HistoryEntry]
    before: str


class OverrideReply(NamedTuple):
    """The state of a lock after its pause or limit changed; ``was_set``: it was set before."""

    was_set: bool
    holders: int
    waiters: int


class AdminCommands:
    """Builds the calls; ``root`` is the root of one shard."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands

    def force_release(
        self, name: str, token: str = "", by: str = "", why: str = "", *, request_id: str
    ) -> Call:
        """Take the lock from its holders: those that had it. ``by`` and ``why`` are logged.

        ``request_id`` is a token by which the server recognises a repeated call.
        """

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        root = self._commands.root(name)
        keys = (*lock_keys(root, name), f"{root}p:{request_id}")
        args = (token, history_text("by", by), history_text("reason", why))
        return Call(scripts.FORCE_RELEASE, root, keys, args, parse, CALL_LIMIT)

    def override(
        self,
        name: str,
        action: OverrideAction,
        new: Override,
        ends_in: float = 0,
        *,
        request_id: str,
    ) -> Call:
        """Pause a lock or set its limit, or end that: an ``OverrideReply``.

        ``ends_in``: seconds after which it ends by itself, 0: never. ``since`` and ``until`` of
        ``new`` have no effect. ``request_id`` is as in ``force_release``.
        """

        def parse(reply: Any) -> OverrideReply:
            was_set, holders, waiters = map(int, reply)
            return OverrideReply(bool(was_set), holders, waiters)

        root = self._commands.root(name)
        keys = (*lock_keys(root, name), f"{root}p:{request_id}")
        kind, sets = ("pause" if new.is_pause else "limit"), action in ("pause", "limit")
        about, by, why = texts_of(new)
        args = (kind, int(sets), milliseconds(ends_in), new.limit, about, by, why, action)
        return Call(scripts.OVERRIDE, root, keys, args, parse, CALL_LIMIT)

    def pattern(
        self, root: str, pause: Override, ends_in: float = 0, *, sets: bool, request_id: str
    ) -> Call:
        """Pause the names that match ``pause.glob`` in one shard, or end that: True if it was set.

        As ``override``; the first shard writes the history. ``apply_patterns`` does the rest.
        """

        def parse(reply: Any) -> bool:
            if int(reply[0]) < 0:
                raise LockUsageError(
                    f"too many patterns are paused to pause {pause.glob!r} too; resume one first"
                )
            return bool(int(reply[0]))

        about, by, why = texts_of(pause)
        logs = int(root == self._commands.roots[0])
        args = (pause.glob, int(sets), milliseconds(ends_in), about, by, why, logs)
        keys = (f"{root}p:{request_id}",)
        return Call(scripts.PATTERN, root, keys, args, parse, CALL_LIMIT)

    def apply_patterns(self, root: str, names: Sequence[str]) -> Call:
        """Give locks of one shard the pauses of the patterns that match them now.

        The result is the number of locks that were resumed.
        """
        keys = tuple(key for name in names for key in lock_keys(root, name))
        return Call(scripts.APPLY_PATTERNS, root, keys, (), int, CALL_LIMIT)

    def pauses(self, root: str) -> Call:
        """Read the patterns that are paused in one shard."""

        def parse(reply: Any) -> list[Override]:
            return [override_of(value) for value in reply[1::2]]

        return Call(scripts.PAUSES, root, (), (), parse, CALL_LIMIT)

    def history(
        self,
        root: str,
        before: str = "",
        size: int = HISTORY_PAGE,
        of: Literal["log", "past"] = "log",
    ) -> Call:
        """Read a ``HistoryPage`` of one shard, from before the id ``before``."""

        def parse(reply: Any) -> HistoryPage:
            entries = [history_entry_of(identifier, fields) for identifier, fields in reply[1:]]
            return HistoryPage(entries, entries[-1].id if reply[0] and entries else "")

        args = (f"({before}" if before else "+", size)
        return Call(scripts.HISTORY, root, (root + of,), args, parse, CALL_LIMIT)

    def durations(self, root: str, tasks: Sequence[str] = ()) -> Call:
        """Read the last holds of tasks in seconds, of one shard; without ``tasks`` of all tasks."""

        def parse(reply: Any) -> dict[str, list[float]]:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            return {
                task.decode(): [int(ms) / 1000 for ms in holds.split()]
                for task, holds in pairs
                if holds
            }

        return Call(scripts.DURATIONS, root, (), tuple(tasks), parse, CALL_LIMIT)

    def prune(
        self, root: str, part: str, cursor: str = "0", *, dry_run: bool = False
    ) -> Operation[PruneStep]:
        """Do one ``PruneStep``; with ``dry_run`` only count."""
        scan, args = _ZSCAN if part in ("index", "completed") else _HSCAN, (cursor, "COUNT", PAGE)
        page = yield Call(scan, root, (root + part,), args, list, CALL_LIMIT)
        pruned = yield self._prune(root, part, page[1], CALL_LIMIT, dry_run=dry_run)
        return PruneStep(page[0].decode(), pruned)

    def prune_lapsed(self, root: str, part: str, now: float, budget: float) -> Operation[bool]:
        """Delete the names of an index whose time is over: True if there may be more of them.

        ``now`` is the caller's clock. It only says where to look; the server's clock decides.
        ``budget`` is for each of the two calls.
        """
        latest = now - FORGET if part == "index" else now
        args = ("-inf", milliseconds(latest), "LIMIT", 0, PAGE)
        names = yield Call(_ZRANGEBYSCORE, root, (root + part,), args, list, budget)
        entries = [text for name in names for text in (name, b"")]
        pruned = (yield self._prune(root, part, entries, budget)) if names else 0
        return bool(pruned == PAGE)

    def _prune(
        self, root: str, part: str, entries: list[bytes], budget: float, *, dry_run: bool = False
    ) -> Call:
        """Delete those of the entries, [field, value]…, that nobody needs: their number."""
        keys: tuple[str, ...] = ()
        args: tuple[Arg, ...] = (part, int(not dry_run))
        for field, value in zip(entries[::2], entries[1::2], strict=True):
            with suppress(ValueError):  # no entry of ours
                texts = field.decode(), value.decode()
                keys += lock_keys(root, name_in(value) if part == "records" else texts[0])
                args += texts
        return Call(scripts.PRUNE, root, keys, args, int, budget)

    def server(self, root: str) -> Call:
        """Read the INFO of the server of a shard, as a mapping."""

        def parse(reply: Any) -> dict[str, str]:
            lines = (line.partition(":") for line in reply.decode().splitlines())
            return {field: value for field, colon, value in lines if colon}

        return Call(scripts.SERVER, root, (), (), parse, CALL_LIMIT)

    def config(self, root: str, setting: str) -> Call:
        """Read one setting of the server of a shard; None if it has no such setting."""

        def parse(reply: Any) -> str | None:
            flat = list(*reply.items()) if isinstance(reply, dict) else reply
            return flat[1].decode() if len(flat) > 1 else None

        return Call(_CONFIG, root, (), ("GET", setting), parse, CALL_LIMIT)


def texts_of(override: Override) -> tuple[str, str, str]:
    """Return the text that a marker has for people, and by whom and why for the log."""
    by, why = history_text("by", override.by), history_text("reason", override.why)
    texts = {"by": by, "why": why, **({"glob": override.glob} if override.glob else {})}
    return json.dumps(texts), by, why
