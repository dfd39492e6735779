"""Values as text for people: no colour needed, and no name can do anything to a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from celery_locks.admin.explain import span
from celery_locks.model import Holder, LockInfo
from celery_locks.text import printable

plain = printable
_CHUNK = 200
_WIDEST = 60
HEADS = ("LOCK", "HOLDER", "WORKER", "PID", "HELD FOR", "LAPSES IN", "WAITING")


def rows(locks: Iterable[LockInfo]) -> Iterator[tuple[str, ...]]:
    """One for each holder; for a lock that is only waited for, one."""
    for lock in locks:
        waiting = str(len(lock.waiters) or "-")
        for holder in lock.holders:
            yield (lock.name, *_holder(holder, lock.as_of), waiting)
        if not lock.holders:
            yield (lock.name, "nobody", "-", "-", "-", "-", waiting)


def _holder(holder: Holder, as_of: float) -> tuple[str, ...]:
    who = f"{holder.task or ''} {holder.task_id}".strip() if holder.task_id else "a process"
    if holder.is_queued:
        who += " (queued)"
    elif holder.is_kept:
        who += " (ended)"
    return (
        who,
        holder.worker or holder.host or "-",
        str(holder.pid or "-"),
        span(as_of - holder.acquired_at),
        span(holder.expires_at - as_of),
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with columns aligned over some hundred rows at a time, so that a long list flows."""
    source = iter(rows)
    first = True
    while chunk := [tuple(plain(cell) for cell in row) for row in islice(source, _CHUNK)]:
        if first:
            chunk.insert(0, tuple(heads))
        first = False
        widths = [min(_WIDEST, max(map(len, column))) for column in zip(*chunk, strict=True)]
        for row in chunk:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()


def detail_lines(lock: LockInfo, sentences: Sequence[str]) -> Iterator[str]:
    """One lock in full; ``sentences`` say for each holder whether it lives."""
    held = f"{len(lock.holders)} of {lock.limit} held"
    yield f"lock     {lock.name}"
    yield f"state    {held}, {len(lock.waiters)} waiting"
    for holder, sentence in zip(lock.holders, sentences, strict=True):
        yield f"holder   {holder}"
        yield f"  token {holder.token}  fence {holder.fence}  retries {max(0, holder.retries)}"
        yield (
            f"  held for {span(lock.as_of - holder.acquired_at)}, "
            f"lapses in {span(holder.expires_at - lock.as_of)} unless renewed "
            f"(ttl {holder.ttl:g} s, renewed about {holder.renewals} times)"
        )
        yield f"  {sentence}"
    for place, waiter in enumerate(lock.waiters, 1):
        yield f"waiter {place} {waiter}, for {span(lock.as_of - waiter.acquired_at)}"
