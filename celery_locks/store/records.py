"""The records in the scripts' replies, as values: holders, locks and history entries. Pure.

``scripts/lib/common.lua`` describes the form of a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from celery_locks.types import REPLACED, HistoryEntry, Holder, LockInfo, Revocation


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
    )


def name_in(record: bytes) -> str:
    """Return the lock name in a record."""
    length, rest = record.split(b" ", 8)[7:]
    return rest[: int(length)].decode()


def infos_of(names: Iterable[str], reply: list[Any]) -> list[LockInfo]:
    """Read the reply of ``describe.lua``: the locks that have holders or waiters."""
    now, *locks = reply
    return [
        _info_of(name, lock, now) for name, lock in zip(names, locks, strict=True) if len(lock) > 1
    ]


def _info_of(name: str, lock: list[Any], now: int) -> LockInfo:
    held, *rest = lock
    entries = list(holders_of(rest))
    limit = int(rest[2].split(b" ", 4)[3]) if rest[2] else 1
    return LockInfo(name, limit, tuple(entries[:held]), tuple(entries[held:]), now / 1000)


def holders_of(flat: Sequence[Any]) -> Iterable[Holder]:
    for start in range(0, len(flat), 3):
        yield holder_of(*flat[start : start + 3])


def holder_of(token: bytes, score: bytes, record: bytes) -> Holder:
    """Read a record. The score is the expiry of a holder, or the ticket of a waiter in µs."""
    if not record:
        return Holder(token=token.decode(), expires_at=float(score) / 1000)
    fence, since, ttl, _limit, job, attempt, _channel, length, rest = record.split(b" ", 8)
    is_waiter = fence == b"0"
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
        acquired_at=float(score) / 1e6 if is_waiter else int(since) / 1000,
        expires_at=int(since) / 1000 if is_waiter else float(score) / 1000,
        owner=about.get("owner", ""),
        nested=job == b"-" and "task_id" in about,
    )
