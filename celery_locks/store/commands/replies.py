"""The values that the commands return, and how they are read from the replies. Pure.

``scripts/lib/common.lua`` describes the form of a record.

More than 300 lines: one parser for each reply, and a reader looks for one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from celery_locks.types import (
    PARKED_PREFIX,
    REPLACED,
    Conflict,
    DelayedCaller,
    HistoryEntry,
    Holder,
    LockInfo,
    LockSpec,
    Override,
    RateInfo,
    Revocation,
)
from celery_locks.validation import FOREVER

# The attempt in the mark of a superseded message; SUPERSEDED in on_grant.lua is the same number.
SUPERSEDED = 10**15
# Seconds for which a parked message counts as alive; PARKED_MS in park.lua is the same time.
PARKED_FOR = 315_360_000


class Renewal(NamedTuple):
    """One lease of a batch to renew."""

    name: str
    token: str
    ttl: float


class Reassertion(NamedTuple):
    """One lease that its holder asserts again, after the server lost its data."""

    spec: LockSpec
    token: str
    fence: int
    holder: Holder


class Ended(NamedTuple):
    """The rejection of an acquire with ``reject_if_ended``: this attempt of the job has ended."""

    was_replaced: bool = False  # it never started: another message replaced it
    is_being_replaced: bool = False  # another message may replace it, or it is not committed yet
    leaves_result: bool = True  # False: it ended without a result (``Ignore``, ``Retry``)


class Completed(NamedTuple):
    """The rejection of an acquire with ``idempotency``: the work is completed, as ``mark`` says."""

    mark: str


class Limited(NamedTuple):
    """The reply of an acquire with ``rates``: the lock is free, but a rate allows no start now.

    Nothing is held. ``is_promised``: the start in ``seconds`` is reserved for the caller, after
    ``ahead`` others. If the rate is paused (``pause``), nothing is reserved: the caller may ask
    again in ``seconds``, when the rate may be resumed.
    """

    rate: str
    seconds: float
    ahead: int
    is_promised: bool
    pause: Override | None = None


class Parked(NamedTuple):
    """The reply of an acquire with ``park``: the message waits in the queue, at this position."""

    position: int


Rejection = Ended | Completed | Limited | Parked


class DelayedGrant(int):
    """The fence of a grant whose holder starts in ``start_in`` seconds, because of a rate."""

    start_in: float


class ReplacedReservation(int):
    """The fence of a grant that replaced the reservation of a message that had not started."""


class GrantBesideOthers(int):
    """The fence of a grant beside holders that have another limit, ``held_limit``."""

    held_limit: int

    def __new__(cls, fence: int, held_limit: int) -> Self:
        grant = super().__new__(cls, fence)
        grant.held_limit = held_limit
        return grant


class GrantSeveral(int):
    """The fence of the first of several locks; ``fences`` has those of all.

    The caller may start in ``start_in`` seconds.
    """

    fences: tuple[int, ...]
    start_in: float

    def __new__(cls, fences: Sequence[int], start_in: float) -> Self:
        grant = super().__new__(cls, fences[0])
        grant.fences, grant.start_in = tuple(fences), start_in
        return grant


class PreparedMessage(NamedTuple):
    """The lock of a message that is about to be sent: its holder, and what that was called with."""

    conflict: Conflict | None
    arguments: str  # "" if they are not known


class RenewReply(NamedTuple):
    """The tokens of a batch that are lost; ``revoked`` has those that an operator force-released.

    ``stops`` are tokens that are still held and whose holders are asked to stop.
    """

    lost: frozenset[str] = frozenset()
    revoked: Mapping[str, Revocation] = {}
    stops: frozenset[str] = frozenset()


class Located(dict[str, tuple[str, Holder]]):
    """Token → (lock name, Holder); ``revoked`` are the tokens that were force-released.

    ``limits`` has the limit of each, 0 for one that shares the lock.
    """

    revoked: frozenset[str] = frozenset()
    limits: Mapping[str, int] = {}


class LockPage(NamedTuple):
    """One page of the list; ``cursor`` is the start of the next page, "" at the end."""

    locks: list[LockInfo]
    cursor: str


class Wait(NamedTuple):
    """The lock that an owner waits for, the waiter's token and ticket, and the lock's holders."""

    owner: str
    name: str
    token: str
    ticket: int
    is_complete: bool
    """False: the lock has more holders than these."""
    holders: tuple[Holder, ...]


def parse_acquire(
    spec: LockSpec, rates: Sequence[str], reply: list[Any], also: Sequence[LockSpec] = ()
) -> int | Conflict | Rejection:
    """Read the reply of an acquire that is not a plain fence."""
    kind = reply[0]
    if kind == b"busy":
        return _parse_busy(spec, *reply[1:])
    if kind == b"busy_at":
        return _parse_busy((spec, *also)[reply[1]], *reply[2][1:])
    if kind == b"several":
        return GrantSeveral(reply[2:], reply[1] / 1e6)
    if kind == b"granted":
        return GrantBesideOthers(reply[1], reply[2])
    if kind == b"replaced":
        return ReplacedReservation(reply[1])
    if kind == b"start_in":
        grant = DelayedGrant(reply[1])
        grant.start_in = reply[2] / 1e6
        return grant
    if kind == b"limited":
        return parse_limited(rates, reply)
    if kind == b"parked":
        return Parked(reply[1])
    if kind == b"ended":
        return _parse_ended(reply[1])
    return Completed(reply[1].decode())


def _parse_busy(
    spec: LockSpec,
    lapses: int,
    position: int,
    now: int,
    ticket: int,
    held_limit: int,
    marker: bytes,
    *holders: Any,
) -> Conflict:
    pause, lapses_in = override_of(marker) if marker else None, max(0, lapses) / 1000
    if pause and not holders:
        lapses_in = FOREVER if pause.until is None else pause.until - now / 1000
    return Conflict(
        spec.name,
        tuple(holders_of(holders)),
        lapses_in,
        position,
        now / 1000,
        ticket,
        pause=pause,
        held_limit=held_limit,
    )


def parse_limited(rates: Sequence[str], reply: list[Any]) -> Limited:
    """Read the reply of ``rate_limit`` in ``rates.lua``; ``rates`` are the names."""
    _, number, micros, ahead, is_promised, *pause = reply
    paused = override_of(pause[0]) if pause else None
    return Limited(rates[number - 1], micros / 1e6, ahead, bool(is_promised), paused)


def parse_prepared(name: str, reply: list[Any]) -> PreparedMessage:
    """Read the reply of ``prepare_message.lua``."""
    now, *found = reply
    if not found:
        return PreparedMessage(None, "")
    arguments, *holder = found
    holders = tuple(holders_of(holder))
    conflict = Conflict(name, holders, 0.0, 1, now / 1000)
    return PreparedMessage(conflict, arguments.decode())


def _parse_ended(ended: bytes) -> Ended:
    if ended == b"?":
        return Ended(is_being_replaced=True)
    attempt = float(ended)
    return Ended(was_replaced=attempt >= SUPERSEDED, leaves_result=attempt.is_integer())


def parse_renew(batch: Sequence[Renewal], reply: list[Any]) -> RenewReply:
    """Read the reply of a renewal; see ``renew.lua`` for the form of its entries."""
    if not reply:
        return RenewReply()
    notes = {batch[entry[0]].token: entry[1] for entry in reply if isinstance(entry, list)}
    positions = [entry for entry in reply if isinstance(entry, int)]
    return RenewReply(
        frozenset(notes) | {batch[position].token for position in positions if position >= 0},
        {token: parse_revocation(note) for token, note in notes.items()},
        frozenset(batch[-1 - position].token for position in positions if position < 0),
    )


def parse_locate(tokens: Sequence[str], reply: list[Any]) -> Located:
    """Read the reply of ``locate.lua``: for each token its record, 1 or nil."""
    found = [pair for pair in zip(tokens, reply, strict=True) if pair[1]]
    located = Located(
        (token, parse_located(token, record)) for token, record in found if record != 1
    )
    located.limits = {token: _limit_in(record) for token, record in found if record != 1}
    located.revoked = frozenset(token for token, record in found if record == 1)
    return located


def parse_wait(owner: str, token: str, name: str, ticket: bytes, count: int, *holders: Any) -> Wait:
    """Make a wait of an owner's waiter and its entry in the reply of ``waits.lua``."""
    known = tuple(holders_of(holders))
    return Wait(owner, name, token, int(float(ticket)), len(known) == count, known)


def parse_located(token: str, record: bytes) -> tuple[str, Holder]:
    """Return the lock name in a record, and the holder without its expiry."""
    return name_in(record), holder_of(token.encode(), b"0", record)


def parse_revocation(note: bytes) -> Revocation:
    length, _, texts = note.partition(b" ")
    by, why = texts[: int(length)], texts[int(length) :]
    return Revocation(by.decode(errors="replace"), why.decode(errors="replace"))


def history_entry_of(identifier: bytes, fields: Sequence[bytes]) -> HistoryEntry:
    pairs = list(zip(fields[::2], fields[1::2], strict=True))
    values = {field.decode(): value.decode(errors="replace") for field, value in pairs}
    holders = [value for field, value in pairs if field == b"from"]
    return HistoryEntry(
        id=identifier.decode(),
        at=int(identifier.split(b"-")[0]) / 1000,
        act=values.get("act", ""),
        name=values.get("name", ""),
        by=values.get("by", ""),
        why=values.get("why", ""),
        holders=tuple(holders_of(holders)),
        held_for=int(values["held"]) / 1000 if "held" in values else None,
        limit=int(values["limit"]) or None if "limit" in values else None,
        until=int(values["until"]) / 1000 or None if "until" in values else None,
        count=int(values["count"]) if "count" in values else None,
        rate=values.get("rate", ""),
    )


def name_in(record: bytes) -> str:
    """Return the lock name in a record."""
    length, rest = record.split(b" ", 8)[7:]
    return rest[: int(length)].decode()


def _limit_in(record: bytes) -> int:
    return int(record.split(b" ", 4)[3])


def infos_of(names: Iterable[str], reply: list[Any]) -> list[LockInfo]:
    """Read the reply of ``describe.lua``: the locks with holders, waiters, a pause or a limit."""
    now, *locks = reply
    return [
        _info_of(name, lock, now)
        for name, lock in zip(names, locks, strict=True)
        if lock[1] or len(lock) > 3
    ]


def _info_of(name: str, lock: list[Any], now: int) -> LockInfo:
    held, markers, parked, *rest = lock
    entries = list(holders_of(rest))
    overrides = [override_of(marker) for marker in markers]
    limited = next((it for it in overrides if not it.is_pause), None)
    limits = [_limit_in(record) for record in rest[2::3] if record]
    limit = limited.limit if limited else (limits or [1])[0]
    own_limits = list(filter(None, limits))  # those that share it have none
    return LockInfo(
        name,
        limit,
        tuple(entries[:held]),
        tuple(entries[held:]),
        now / 1000,
        next((it for it in overrides if it.is_pause), None),
        limited,
        () if limited else tuple(sorted({*own_limits} - {limit, *own_limits[:1]})),
        bool(entries) and entries[0].shared,
        parked,
    )


def override_of(marker: bytes) -> Override:
    """Read a marker, or the value of a pattern or rate; see ``overrides.lua``, ``rates.lua``."""
    is_guard = marker.startswith(b"~guard ")
    if marker.startswith(b"~"):
        marker = marker.split(b" ", 1)[1]
    until, since, limit, about = marker.split(b" ", 3)
    texts = json.loads(about)
    ends = int(until) / 1000 if until != b"0" else None
    if b"/" in limit:
        texts["rate"] = " ".join(part.split(":")[0] for part in limit.decode().split(","))
        limit = b"0"
    return Override(int(limit), since=int(since) / 1000, until=ends, is_guard=is_guard, **texts)


def holders_of(flat: Sequence[Any]) -> Iterable[Holder]:
    for start in range(0, len(flat), 3):
        yield holder_of(*flat[start : start + 3])


def holder_of(token: bytes, score: bytes, record: bytes) -> Holder:
    """Read a record. The score is the expiry of a holder, or the ticket of a waiter in µs.

    The ticket of a parked message need not be the time at which it was parked: one that was woken
    and parked again comes first. The time until which it counts as alive tells it.
    """
    if not record:
        return Holder(token=token.decode(), expires_at=float(score) / 1000)
    fence, since, ttl, limit, job, attempt, _channel, length, rest = record.split(b" ", 8)
    is_waiter = fence == b"0"
    is_parked = is_waiter and token.startswith(PARKED_PREFIX.encode())
    waits_since = int(since) / 1000 - PARKED_FOR if is_parked else float(score) / 1e6
    about = json.loads(rest[int(length) :])
    replaced, tries = divmod(int(attempt), REPLACED)
    return Holder(
        token=token.decode(),
        fence=int(fence),
        task_id=about.get("task_id") if job == b"-" else unquote(job[1:].decode()),
        task=about.get("task"),
        retries=tries - 1,
        replaced=replaced,
        worker=about.get("worker"),
        host=about.get("host"),
        pid=about.get("pid"),
        extra=about.get("extra", {}),
        ttl=int(ttl) / 1000,
        acquired_at=waits_since if is_waiter else int(since) / 1000,
        expires_at=int(since) / 1000 if is_waiter else float(score) / 1000,
        owner=about.get("owner", ""),
        nested=job == b"-" and "task_id" in about,
        shared=limit == b"0",
        also=tuple(about.get("also", ())),
    )


def rate_info_of(
    micros: int, name: str, fields: Sequence[Any], delayed: int, callers: Sequence[Any]
) -> RateInfo:
    """Read an entry of the reply of ``rates.lua``."""
    times = dict(zip(fields[::2], fields[1::2], strict=True))
    limits = times.get(b"limits", b"").decode()
    pause, override = (_live_override(times.get(field), micros) for field in (b"pause", b"rate"))
    free_at = pushed_back_until = max(micros, int(times.get(b"n", 0)))
    if pause and pause.until:
        free_at = max(free_at, int(pause.until * 1e6))
    in_force = times[b"rate"].split(b" ")[2].decode().replace(",", " ") if override else limits
    for limit in in_force.split():
        count, _, tolerance, *_ = limit.split(":")
        period = count[-1].encode()
        latest = max(int(times.get(period + kind, 0)) for kind in (b"r", b"s"))
        free_at = max(free_at, latest - int(tolerance))
    pairs = zip(callers[::2], callers[1::2], strict=True)
    return RateInfo(
        name=name,
        limits=tuple(limit.split(":")[0] for limit in limits.split()),
        free_in=(free_at - micros) / 1e6,
        pushed_back=(pushed_back_until - micros) / 1e6,
        delayed=delayed,
        callers=tuple(
            DelayedCaller(
                _task_id_of(caller), (abs(float(at)) - micros) / 1e6, is_promised=float(at) > 0
            )
            for caller, at in pairs
        ),
        as_of=micros / 1e6,
        pause=pause,
        rate_override=override,
    )


def _live_override(value: bytes | None, micros: int) -> Override | None:
    """Return what an operator set for a rate; None if its time is over."""
    override = override_of(value) if value else None
    is_over = override and override.until is not None and override.until * 1e6 <= micros
    return None if is_over else override


def _task_id_of(caller: bytes) -> str | None:
    """Return the task id of a job; None for a token, which is hexadecimal and has no "j"."""
    return unquote(caller[1:].decode()) if caller.startswith(b"j") else None
