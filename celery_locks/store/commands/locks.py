"""The commands of holders and waiters: what goes to each script and how its reply is read.

Pure: no I/O and no clock. ``LockCommands`` knows the layout (prefix and shards). The contract of
each script is at the head of its ``.lua`` file.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from celery_locks.errors import LockUsageError
from celery_locks.store import scripts
from celery_locks.store.calls import Call, Operation
from celery_locks.store.commands.replies import (
    Located,
    LockPage,
    Rejection,
    RenewReply,
    Wait,
    parse_acquire,
    parse_locate,
    parse_renew,
    parse_wait,
)
from celery_locks.store.commands.requests import (
    AcquireExtras,
    Mark,
    Renewal,
    job_field,
    lock_keys,
    milliseconds,
    superseded_mark,
)
from celery_locks.store.packing import Arg
from celery_locks.store.records import holders_of, infos_of
from celery_locks.store.scripts import PlainCommand
from celery_locks.types import (
    DEFAULT_PREFIX,
    Conflict,
    Holder,
    LockInfo,
    LockSpec,
)
from celery_locks.validation import CLAIMED, QUEUED, history_text

CALL_LIMIT = 3.0
# For deadlock detection: less than the time in which a waiter must claim its grant (CLAIM).
WAITS_LIMIT = 0.3
RENEW_BATCH = 250
# The server needs about 1 ms for this many locks. 100 take 2 to 5 ms or more, which delays others.
PAGE = 40
# The claim window in seconds; CLAIM_MS in handover.lua is the same number.
CLAIM = 1.0
_MGET, _ZSCAN = PlainCommand("MGET"), PlainCommand("ZSCAN")


def budget_of(ttl: float) -> float:
    """Return the longest time for a call about such a lease: a third, so that two tries fit."""
    return min(ttl / 3, CALL_LIMIT)


class LockCommands:
    """Builds the calls for one prefix, spread over ``shards`` hash tags."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, shards: int = 1) -> None:
        if not prefix or set(prefix) & set("{} \r\n"):
            raise LockUsageError(f"prefix {prefix!r} must be a text without braces and spaces")
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise LockUsageError(f"shards is {shards!r}; it must be a whole number from 1")
        self.prefix = prefix
        self.roots = [f"{prefix}:{{{shard}}}:" for shard in range(shards)]
        self._only_root = self.roots[0] if shards == 1 else ""

    def root(self, name: str) -> str:
        """Return the shard of a lock, the same in every process with this prefix and shards."""
        if len(self.roots) == 1:
            return self.roots[0]
        return self.roots[zlib.crc32(_shard_name(name).encode()) % len(self.roots)]

    def acquire(
        self,
        spec: LockSpec,
        token: str,
        holder: Holder,
        extras: AcquireExtras | None = None,
        *,
        alive: float = 0,
        channel: str = "-",
        owners: Sequence[str] = (),
    ) -> Call:
        """Acquire the lock: the fence, a ``Conflict`` or, if the extras ask, a ``Rejection``.

        A caller with ``alive`` joins the queue of a busy lock and counts as alive for that many
        seconds. ``owners`` hold other locks and are blocked while this caller waits.
        """
        name, ttl, limit, _, _ = spec
        ms, size = round(ttl * 1000), len(name) if name.isascii() else len(name.encode())
        job, root = job_field(holder), self._only_root or self.root(name)
        record = f"{ms} {limit} {job} {holder.attempt} {channel} {size} {name}{holder.about()}"
        keys: tuple[str, ...] = lock_keys(root, name)
        args: tuple[Arg, ...] = (token, record)
        if alive:
            args += ("wait", milliseconds(alive))
        if extras:
            more_keys, more_args = extras.options(root, token, job)
            keys, args = (*keys, *more_keys), (*args, *more_args)
        if owners:
            keys += tuple(f"{root}w:{owner}" for owner in owners)

        def parse(reply: Any) -> int | Conflict | Rejection:
            return reply if isinstance(reply, int) else parse_acquire(spec, reply)

        return Call(scripts.ACQUIRE, root, keys, args, parse, min(ttl / 3, CALL_LIMIT))

    def release(
        self,
        name: str,
        token: str,
        *,
        keep_for: float = 0,
        next_token: str = "",
        marks: Sequence[Mark] = (),
        history_note: str | None = None,
        budget: float = CALL_LIMIT,
    ) -> Call:
        """Release the lock: True if the token held it. Leave the ``marks`` in any case.

        ``keep_for``: seconds for which the slot stays taken, under ``next_token`` or a token that
        nobody knows. With a ``history_note``, a hold of more than a second is noted in the history:
        "" if it ended by itself, else why it ended.
        """
        root = self._only_root or self.root(name)
        keys: tuple[str, ...] = lock_keys(root, name)
        args: tuple[Arg, ...] = (token,)
        if keep_for or marks or history_note is not None:
            args += (milliseconds(keep_for), next_token)
            for key, value, ttl in marks:
                keys += (root + key,)
                args += (value, milliseconds(ttl))
            if history_note is not None:
                args += (history_note,)
        return Call(scripts.RELEASE, root, keys, args, bool, budget)

    def supersede(self, name: str, task_id: str, seconds: float) -> Call:
        """Mark a replaced message: it does not run if it is delivered within these seconds."""
        return self.release(name, "", marks=[superseded_mark(task_id, seconds)])

    def locate(self, root: str, tokens: Sequence[str], budget: float) -> Call:
        """Find the holders of tokens in one shard, as ``Located``."""

        def parse(reply: Any) -> Located:
            return parse_locate(tokens, reply)

        return Call(scripts.LOCATE, root, (), tuple(tokens), parse, budget)

    def renew(self, batch: Sequence[Renewal], budget: float, *, retimed: bool = False) -> Call:
        """Renew leases of one shard: a ``RenewReply``.

        ``retimed``: there is only one lease, and it changes its ttl.
        """
        root = self.root(batch[0].name)
        keys = tuple(f"{root}h:{name}" for name, _, _ in batch)
        args: list[Arg] = []
        for _, token, ttl in batch:
            args += (token, round(ttl * 1000))
        args += (1,) if retimed else ()

        def parse(reply: Any) -> RenewReply:
            return parse_renew(batch, reply)

        return Call(scripts.RENEW, root, keys, tuple(args), parse, budget)

    def stop(
        self, name: str, token: str = "", by: str = "", why: str = "", *, request_id: str
    ) -> Call:
        """Ask the holders to stop: those that were asked. Logged only with ``by``.

        ``request_id`` is a token by which the server recognises a repeated call.
        """

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        root = self.root(name)
        keys = (f"{root}h:{name}", f"{root}p:{request_id}")
        args = (token, history_text("by", by), history_text("reason", why))
        return Call(scripts.STOP, root, keys, args, parse, CALL_LIMIT)

    def info(self, name: str) -> Call:
        """Read one lock: its ``LockInfo``, or None without holders and waiters."""

        def parse(reply: Any) -> LockInfo | None:
            return next(iter(infos_of([name], reply)), None)

        root = self.root(name)
        return Call(scripts.DESCRIBE, root, lock_keys(root, name), (), parse, CALL_LIMIT)

    # The names of these are read first, so that the call declares its keys.

    def waits(self, root: str, owners: Sequence[str]) -> Operation[list[Wait]]:
        """Read a ``Wait`` for each of the owners that waits in this shard."""
        keys = tuple(f"{root}w:{owner}" for owner in owners)
        values = yield Call(_MGET, root, keys, (), list, WAITS_LIMIT)
        pairs = zip(owners, values, strict=True)
        waiters = [(owner, *value.decode().split(" ", 1)) for owner, value in pairs if value]
        if not waiters:
            return []
        keys = tuple(key for _, _, name in waiters for key in lock_keys(root, name))
        tokens = tuple(token for _, token, _ in waiters)
        entries = yield Call(scripts.WAITS, root, keys, tokens, list, WAITS_LIMIT)
        found = zip(waiters, entries, strict=True)
        return [parse_wait(*waiter, *entry) for waiter, entry in found if entry]

    def page(
        self, cursor: str = "", size: int = PAGE, *, lapsed: bool = False
    ) -> Operation[LockPage]:
        """Read a ``LockPage``; a lock that is held during the whole walk is on some page.

        With ``lapsed`` it has the holders that lapsed and are not forgotten yet.
        """
        root, names, cursor = yield from self.names("index", cursor, size)
        if not names:
            return LockPage([], cursor)

        def parse(reply: Any) -> list[LockInfo]:
            return infos_of(names, reply)

        keys = tuple(key for name in names for key in lock_keys(root, name))
        locks = yield Call(scripts.DESCRIBE, root, keys, (int(lapsed),), parse, CALL_LIMIT)
        return LockPage(locks, cursor)

    def names(
        self, key: str, cursor: str = "", size: int = PAGE
    ) -> Operation[tuple[str, list[str], str]]:
        """Read a page of the names in one of the indexes: the root, the names, the next cursor.

        A cursor is the shard and the server's cursor in it, "" at the start and at the end.
        """
        shard, _, inner = (cursor or "0:0").partition(":")
        root = self.roots[int(shard)]
        page = yield Call(_ZSCAN, root, (root + key,), (inner, "COUNT", size), list, CALL_LIMIT)
        following, names = page[0].decode(), [name.decode() for name in page[1][::2]]
        if following != "0":
            return root, names, f"{shard}:{following}"
        is_last = int(shard) + 1 == len(self.roots)
        return root, names, "" if is_last else f"{int(shard) + 1}:0"


def _shard_name(name: str) -> str:
    """Return the name that decides the shard: a reservation is in the shard of its run.

    The shard of a claim must never change, whatever its lock is called: its value is stored there.
    """
    if name.endswith(CLAIMED):
        return "claim:" + name.removesuffix(CLAIMED)
    return name.removesuffix(QUEUED)
