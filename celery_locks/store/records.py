"""What the scripts' replies say of holders, as values. Pure.

Records are as ``common.lua`` describes them; who asks for what is in ``verbs.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from celery_locks.types import REPLACED, HistoryEntry, Holder, LockInfo, Revocation


def located(token: str, record: bytes) -> tuple[str, Holder]:
    length, rest = record.split(b" ", 8)[7:]
    return rest[: int(length)].decode(), holder_of(token.encode(), b"0", record)


def revocation(note: bytes) -> Revocation:
    length, _, said = note.partition(b" ")
    return Revocation(
        said[: int(length)].decode(errors="replace"), said[int(length) :].decode(errors="replace")
    )


def act_of(identifier: bytes, fields: Sequence[bytes]) -> HistoryEntry:
    said = list(zip(fields[::2], fields[1::2], strict=True))
    words = {word.decode(): value.decode(errors="replace") for word, value in said}
    taken = [value for word, value in said if word == b"from"]
    return HistoryEntry(
        id=identifier.decode(),
        at=int(identifier.split(b"-")[0]) / 1000,
        act=words.get("act", ""),
        name=words.get("name", ""),
        by=words.get("by", ""),
        why=words.get("why", ""),
        holders=tuple(holders_of(taken)),
        held_for=int(words["held"]) / 1000 if "held" in words else None,
    )


def info_of(lock: list[Any], now: int) -> LockInfo:
    name, held, *rest = lock
    entries = list(holders_of(rest))
    limit = int(rest[2].split(b" ", 4)[3]) if rest[2] else 1
    return LockInfo(name.decode(), limit, tuple(entries[:held]), tuple(entries[held:]), now / 1000)


def holders_of(flat: Sequence[Any]) -> Iterable[Holder]:
    for start in range(0, len(flat), 3):
        yield holder_of(*flat[start : start + 3])


def holder_of(token: bytes, score: bytes, record: bytes) -> Holder:
    """A record as ``common.lua`` describes it; a waiter's score is its ticket, in microseconds."""
    if not record:
        return Holder(token=token.decode(), expires_at=float(score) / 1000)
    fence, since, ttl, _limit, job, attempt, _channel, length, rest = record.split(b" ", 8)
    waiting = fence == b"0"
    said = json.loads(rest[int(length) :])
    replaced, tries = divmod(int(attempt), REPLACED)
    return Holder(
        token=token.decode(),
        fence=int(fence),
        task_id=said.get("task_id") if job == b"-" else unquote(job[1:].decode()),
        task=said.get("task"),
        retries=tries - 1,
        replaced=replaced,
        worker=said.get("worker"),
        host=said.get("host"),
        pid=said.get("pid"),
        extra=said.get("extra", {}),
        ttl=int(ttl) / 1000,
        acquired_at=float(score) / 1e6 if waiting else int(since) / 1000,
        expires_at=int(since) / 1000 if waiting else float(score) / 1000,
        owner=said.get("owner", ""),
        nested=job == b"-" and "task_id" in said,
    )
