"""Values as text for people, without colour; control characters in names are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from celery_locks.admin import format_count, format_duration
from celery_locks.printable_text import printable
from celery_locks.types import Holder, LockInfo

_CHUNK = 200
_WIDEST = 120  # a very long name must not push all columns off the screen
HEADS = ("LOCK", "HOLDER", "WORKER", "PID", "HELD FOR", "LAPSES IN", "WAITING")


def rows(locks: Iterable[LockInfo]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each holder, and one for a lock that has none."""
    for lock in locks:
        waiting = str(lock.waiting or "-") + (f" ({lock.parked} parked)" if lock.parked else "")
        waiting += " (paused)" if lock.pause else ""
        waiting += f" (limit {lock.limit_override.limit})" if lock.limit_override else ""
        for holder in lock.holders:
            yield (lock.name, *_holder(holder, lock.as_of), waiting)
        if not lock.holders:
            yield (lock.name, "nobody", "-", "-", "-", "-", waiting)


def _holder(holder: Holder, as_of: float) -> tuple[str, ...]:
    who = f"{holder.task or ''} {holder.task_id or ''}".strip() or "a process"
    if holder.is_queued:
        who += " (queued)"
    elif holder.is_kept:
        who += " (ended)"
    if holder.shared:
        who += " (shared)"
    return (
        who,
        holder.worker or holder.host or "-",
        str(holder.pid or "-"),
        format_duration(as_of - holder.acquired_at),
        format_duration(holder.expires_at - as_of),
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield lines, aligned over some hundred rows at a time so that a long list starts at once."""
    source = iter(rows)
    first = True
    while chunk := [tuple(printable(cell) for cell in row) for row in islice(source, _CHUNK)]:
        if first:
            chunk.insert(0, tuple(heads))
        first = False
        widths = [min(_WIDEST, max(map(len, column))) for column in zip(*chunk, strict=True)]
        for row in chunk:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()


def fit(rows: Sequence[Sequence[str]], width: int, gap: int) -> list[tuple[str, ...]]:
    """Fit a table (heads first) to a narrow terminal: drop columns, but keep the lock's name.

    ``gap`` is the space between columns. The holder is shortened last.
    """
    table = [tuple(printable(cell) for cell in row) for row in rows]
    for head in ("PID", "LAPSES IN", "WORKER"):
        if _width(table, gap) > width:
            at = table[0].index(head)
            table = [row[:at] + row[at + 1 :] for row in table]
    at = table[0].index("HOLDER")
    holder = max(len(row[at]) for row in table)
    room = max(len("HOLDER"), holder - max(0, _width(table, gap) - width))
    return [(*row[:at], _shortened(row[at], room), *row[at + 1 :]) for row in table]


def _width(table: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, column)) + gap for column in zip(*table, strict=True))


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def detail_lines(lock: LockInfo, sentences: Sequence[str]) -> Iterator[str]:
    """Yield the details of one lock; ``sentences`` say for each holder whether it is alive."""
    held = (
        f"{len(lock.holders)} of {lock.limit} held"
        if lock.limit
        else f"{len(lock.holders)} share it"
    )
    yield f"lock     {lock.name}"
    parked = f", {lock.parked} of them parked" if lock.parked else ""
    yield f"state    {held}, {lock.waiting} waiting{parked}"
    for override in (lock.pause, lock.limit_override):
        if override:
            yield f"operator {override}"
    if lock.other_limits:
        yield f"limits   callers have others too: {', '.join(map(str, lock.other_limits))}"
    for holder, sentence in zip(lock.holders, sentences, strict=True):
        yield f"holder   {holder}"
        yield f"  token {holder.token}  fence {holder.fence}  retries {max(0, holder.retries)}"
        yield (
            f"  held for {format_duration(lock.as_of - holder.acquired_at)}, "
            f"lapses in {format_duration(holder.expires_at - lock.as_of)} unless renewed "
            f"(ttl {holder.ttl:g} s, about {format_count(holder.renewals, 'renewal')})"
        )
        yield f"  {sentence}"
    for position, waiter in enumerate(lock.waiters, 1):
        waits = "parked for" if waiter.is_parked else "for"
        age = format_duration(lock.as_of - waiter.acquired_at)
        yield f"waiter {position} {waiter}, {waits} {age}"
    if lock.waiting > len(lock.waiters):
        yield f"… and {lock.waiting - len(lock.waiters)} more"
