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
from celery_locks.store.calls import Call
from celery_locks.store.commands.replies import (
    Done,
    Located,
    LockPage,
    Lost,
    Wait,
    parse_acquire,
    parse_locate,
    parse_lost,
    parse_wait,
)
from celery_locks.store.commands.requests import (
    AcquireExtras,
    Mark,
    Renewal,
    job_field,
    milliseconds,
    superseded_mark,
)
from celery_locks.store.records import holders_of, info_of
from celery_locks.store.resp import Arg
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
        """Acquire the lock: the fence, a ``Conflict`` or, if the extras ask for it, a ``Done``.

        A caller with ``alive`` joins the queue of a busy lock and counts as alive for so many
        seconds. ``owners`` hold other locks and are blocked while this caller waits.
        """
        name, ttl, limit, _, _ = spec
        ms, size = round(ttl * 1000), len(name) if name.isascii() else len(name.encode())
        record = (
            f"{ms} {limit} {job_field(holder)} {holder.attempt} {channel} {size} {name}"
            f"{holder.about()}"
        )
        args: tuple[Arg, ...] = (name, token, ms, record)
        if alive or extras:
            alive_ms = milliseconds(alive)
            waits: Arg = " ".join((str(alive_ms), *owners)) if owners else alive_ms
            args += (waits, *(extras.args() if extras else ()))

        def parse(reply: Any) -> int | Conflict | Done:
            return reply if isinstance(reply, int) else parse_acquire(spec, reply)

        root = self._only_root or self.root(name)
        return Call(scripts.ACQUIRE, root, args, parse, min(ttl / 3, CALL_LIMIT))

    def release(
        self,
        name: str,
        token: str,
        *,
        keep: float = 0,
        keep_as: str = "",
        marks: Sequence[Mark] = (),
        past: str | None = None,
        budget: float = CALL_LIMIT,
    ) -> Call:
        """Release the lock: True if the token held it. Leave the ``marks`` in any case.

        ``keep`` keeps the slot taken for so many seconds, under the token ``keep_as`` or one that
        nobody knows. With ``past``, a hold of more than a second is noted in the history: "" if it
        ended by itself, else why it ended.
        """
        args: tuple[Arg, ...] = (name, token)
        if keep or marks or past is not None:
            args += (milliseconds(keep), keep_as)
            for mark, value, ttl in marks:
                args += (mark, value, milliseconds(ttl))
            if past is not None:
                args += (past,)
        return Call(scripts.RELEASE, self._only_root or self.root(name), args, bool, budget)

    def supersede(self, name: str, task_id: str, seconds: float) -> Call:
        """Mark a replaced message: it does not run if it is delivered within these seconds."""
        return self.release(name, "", marks=[superseded_mark(task_id, seconds)])

    def locate(self, root: str, tokens: Sequence[str], budget: float) -> Call:
        """Find the holders of tokens in one shard, as ``Located``."""

        def parse(reply: Any) -> Located:
            return parse_locate(tokens, reply)

        return Call(scripts.LOCATE, root, tuple(tokens), parse, budget)

    def renew(self, batch: Sequence[Renewal], budget: float, *, retimed: bool = False) -> Call:
        """Renew leases of one shard: the ``Lost`` tokens among them.

        ``retimed``: there is only one lease, and it changes its ttl.
        """
        args: list[Arg] = []
        for name, token, ttl in batch:
            args += (name, token, round(ttl * 1000))
        args += (1,) if retimed else ()

        def parse(reply: Any) -> Lost:
            return parse_lost(batch, reply)

        return Call(scripts.RENEW, self.root(batch[0].name), tuple(args), parse, budget)

    def stop(
        self, name: str, token: str = "", by: str = "", why: str = "", *, request_id: str
    ) -> Call:
        """Ask the holders to stop: those that were asked. Logged only with ``by``.

        ``request_id`` is a token by which the server recognises a repeated call.
        """

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        args = (name, token, history_text("by", by), history_text("reason", why), request_id)
        return Call(scripts.STOP, self.root(name), args, parse, CALL_LIMIT)

    def info(self, name: str) -> Call:
        """Read one lock: its ``LockInfo``, or None without holders and waiters."""

        def parse(reply: Any) -> LockInfo | None:
            now, lock = reply
            return info_of(lock, now) if len(lock) > 2 else None

        return Call(scripts.INFO, self.root(name), (name,), parse, CALL_LIMIT)

    def waits(self, root: str, owners: Sequence[str]) -> Call:
        """Read a ``Wait`` for each of the owners that waits in this shard."""

        def parse(reply: Any) -> list[Wait]:
            return [parse_wait(*entry) for entry in reply]

        return Call(scripts.WAITS, root, tuple(owners), parse, WAITS_LIMIT)

    def page(self, cursor: str = "", size: int = PAGE, *, lapsed: bool = False) -> Call:
        """Read a ``LockPage``; a cursor is the shard and the server's cursor in it.

        With ``lapsed`` it has the holders that lapsed and are not forgotten yet.
        """
        shard, _, inner = (cursor or "0:0").partition(":")

        def parse(reply: Any) -> LockPage:
            locks = [info_of(lock, reply[1]) for lock in reply[2:]]
            return LockPage(locks, self.next_cursor(int(shard), reply[0].decode()))

        return Call(
            scripts.LIST, self.roots[int(shard)], (inner, size, int(lapsed)), parse, CALL_LIMIT
        )

    def next_cursor(self, shard: int, inner: str) -> str:
        """Return the cursor after ``inner``, which may be in the next shard."""
        if inner != "0":
            return f"{shard}:{inner}"
        return f"{shard + 1}:0" if shard + 1 < len(self.roots) else ""


def _shard_name(name: str) -> str:
    """Return the name that decides the shard: a reservation is in the shard of its run.

    The shard of a claim must never change, whatever its lock is called: its value is stored there.
    """
    if name.endswith(CLAIMED):
        return "claim:" + name.removesuffix(CLAIMED)
    return name.removesuffix(QUEUED)
