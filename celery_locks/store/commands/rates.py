"""The commands of rates, in the same layout as those of the locks. Pure.

A rate is in the shard of its name. ``LockCommands.acquire`` decides those in the lock's shard.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.admin import texts_of
from celery_locks.store.commands.locks import (
    CALL_LIMIT,
    PAGE,
    LockCommands,
    RateCheck,
    job_field,
    milliseconds,
    rate_keys,
)
from celery_locks.store.commands.replies import Limited, parse_limited, rate_info_of
from celery_locks.store.effects import Call, Operation
from celery_locks.types import Holder, Override, RateInfo

# The number of callers with a promise that a page has for each rate.
_CALLERS = 20
RateAction = Literal["rate_pause", "rate_resume", "rate", "rate_reset"]


class RatePage(NamedTuple):
    """One page of the list; ``cursor`` is the start of the next page, "" at the end."""

    rates: list[RateInfo]
    cursor: str


class RateCommands:
    """Builds the calls for the layout of ``commands``."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands

    def throttle(
        self, rate: RateCheck, token: str, caller: str = "", *, counts: bool = True
    ) -> Call:
        """Start at a rate: the seconds until the start, at most 1, or ``Limited``.

        A promise is the ``caller``'s, which is the token by default. Unless it ``counts``, the
        start is only asked for.
        """

        def parse(reply: Any) -> float | Limited:
            return reply[1] / 1e6 if reply[0] == b"start" else parse_limited((rate.name,), reply)

        root = self._commands.root(rate.name)
        keys, args = rate.keys(root, token), (caller or token, *rate.args(), int(counts))
        return Call(scripts.THROTTLE, root, keys, args, parse, CALL_LIMIT)

    def push_back(self, name: str, seconds: float) -> Call:
        """Let nothing start at this rate for some seconds."""
        root = self._commands.root(name)
        keys, args = (f"{root}r:{name}", f"{root}rates"), (name, round(seconds * 1e6))
        return Call(scripts.PUSH_BACK, root, keys, args, bool, CALL_LIMIT)

    def override(
        self,
        name: str,
        action: RateAction,
        new: Override,
        limits: str = "0",
        ends_in: float = 0,
        *,
        request_id: str,
    ) -> Call:
        """Pause a rate or set another (``limits``), or end that: True if it was set before.

        The arguments are those of ``AdminCommands.override``.
        """

        def parse(reply: Any) -> bool:
            return bool(int(reply[0]))

        root = self._commands.root(name)
        keys = (*rate_keys(root, name), f"{root}rates", f"{root}p:{request_id}")
        kind = "pause" if action in ("rate_pause", "rate_resume") else "rate"
        sets = action in ("rate_pause", "rate")
        about, by, why = texts_of(new)
        args = (name, kind, int(sets), milliseconds(ends_in), limits.replace(" ", ","))
        logged = (about, by, why, action, new.rate)
        return Call(scripts.OVERRIDE_RATE, root, keys, (*args, *logged), parse, CALL_LIMIT)

    def info(self, name: str) -> Call:
        """Read one rate: its ``RateInfo``; None if the server knows nothing of it."""

        def parse(reply: Any) -> RateInfo | None:
            micros, fields, delayed, callers = reply
            known = fields or delayed
            return rate_info_of(micros, name, fields, delayed, callers) if known else None

        root = self._commands.root(name)
        keys, args = rate_keys(root, name), (_CALLERS, "")
        return Call(scripts.RATES, root, keys, args, parse, CALL_LIMIT)

    def page(
        self, cursor: str = "", size: int = PAGE, task_id: str | None = None
    ) -> Operation[RatePage]:
        """Read a ``RatePage``: rates that delay callers, are pushed back, or that operators set.

        With a ``task_id``: those that have a promised start for this task; it is their only caller
        then, and ``delayed`` the number of those before it.
        """
        root, names, cursor = yield from self._commands.names("rates", cursor, size)
        if not names:
            return RatePage([], cursor)

        def parse(reply: Any) -> list[RateInfo]:
            micros, *parts = reply
            groups = zip(names, parts[::3], parts[1::3], parts[2::3], strict=True)
            infos = (rate_info_of(micros, *group) for group in groups)
            if task_id is not None:
                return [info for info in infos if info.callers]
            return [
                info
                for info in infos
                if info.delayed or info.pushed_back or info.pause or info.rate_override
            ]

        caller = "" if task_id is None else job_field(Holder(task_id=task_id))
        keys = tuple(key for name in names for key in rate_keys(root, name))
        rates = yield Call(scripts.RATES, root, keys, (_CALLERS, caller), parse, CALL_LIMIT)
        return RatePage(rates, cursor)
