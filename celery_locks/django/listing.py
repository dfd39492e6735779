"""One page of the list, as text for the template; never more locks than the page shows.

Up to ``FEW`` locks the list is sorted, if not told otherwise the longest held first. With more it
comes as the server has it, so that the first page costs the same however many there are; a click on
a column's head sorts them all, which takes about a second for ten thousand. After ``PATIENCE``
seconds the list ends where it is, and says so.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, get_args
from urllib.parse import urlencode

from celery_locks import admin
from celery_locks.admin import LockState, format_duration
from celery_locks.core.locks import Locks
from celery_locks.text import printable
from celery_locks.types import Holder, LockInfo

SIZE = 100
FEW = 1000
_LAST = 100_000
_USUAL_SORT = "held"
# Web servers give up on a request that takes 30 s.
PATIENCE = 10.0

STATES = get_args(LockState)


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for; what makes no sense in it is as if it were not there."""

    q: str = ""
    task: str = ""
    worker: str = ""
    state: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, asked: Any) -> Question:
        said = {word: asked.get(word, "").strip() for word in ("q", "task", "worker")}
        state, sort, page = (asked.get(word, "") for word in ("state", "sort", "page"))
        return cls(
            **said,
            state=state if state in STATES else "",
            sort=sort if sort.removeprefix("-") in admin.SORTS else "",
            page=min(int(page), _LAST) if page.isdecimal() and len(page) < 9 and int(page) else 1,
        )

    def but(self, **changes: Any) -> str:
        """The address of the same list but for this; it begins with the first page again."""
        said = replace(self, **{"page": 1, **changes})
        words = {word: getattr(said, word) for word in self.__slots__}
        return "?" + urlencode({w: v for w, v in words.items() if v and (w, v) != ("page", 1)})

    @property
    def is_filtered(self) -> bool:
        return bool(self.q or self.task or self.worker or self.state)

    @property
    def filters(self) -> Any:
        return {
            "glob": _glob(self.q),
            "task": _glob(self.task),
            "worker": self.worker or None,
            "state": self.state or None,
        }


def _glob(text: str) -> str | None:
    """Text without * and ? is looked for anywhere, as everywhere in Django's admin."""
    if not text or admin.is_glob(text):
        return text or None
    return f"*{text}*"


@dataclass(frozen=True, slots=True)
class Row:
    """One lock as the list shows it; ``name`` is as stored, all else is text for people."""

    name: str
    label: str
    holder: str
    worker: str
    held_for: str
    lapses_in: str
    waiting: str


@dataclass(frozen=True, slots=True)
class Part:
    """A page; ``total`` is None where they were not all looked at.

    ``exact`` is the lock that was asked for by its very name, if it is not on this page;
    ``looked_at`` says after how many locks the time was up, if it was.
    """

    rows: tuple[Row, ...] = ()
    exact: Row | None = None
    looked_at: int | None = None
    has_next: bool = False
    total: int | None = None
    sort: str = ""


def part_of(locks: Locks, asked: Question) -> Part:
    walk = _Walk(locks)
    found = filter(admin.wanted(**asked.filters), walk)
    first = list(islice(found, FEW + 1))
    everything: Iterable[LockInfo] = chain(first, found)
    sort = asked.sort or (_USUAL_SORT if len(first) <= FEW else "")
    total = None
    end = asked.page * SIZE
    if sort:
        everything, total = _sorted(everything, sort, end + 1)
    rows = [_row(lock) for lock in islice(everything, end - SIZE, end + 1)]
    return Part(
        rows=tuple(rows[:SIZE]),
        exact=_exact(locks, asked.q, rows[:SIZE]),
        looked_at=walk.looked_at if walk.is_cut else None,
        has_next=len(rows) > SIZE,
        total=total,
        sort=sort,
    )


class _Walk:
    """All locks, as far as the time allows."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._ends = time.monotonic() + PATIENCE
        self.looked_at = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[LockInfo]:
        for lock in admin.list_locks(self._locks):
            self.is_cut = time.monotonic() > self._ends
            if self.is_cut:
                return
            self.looked_at += 1
            yield lock


def _exact(locks: Locks, name: str, shown: list[Row]) -> Row | None:
    if not name or any(row.name == name for row in shown):
        return None
    lock = locks.info(name)
    return _row(lock) if lock else None


def _sorted(found: Iterable[LockInfo], sort: str, most: int) -> tuple[list[LockInfo], int]:
    """So many from the top, and how many there are."""
    total = 0

    def counted() -> Iterator[LockInfo]:
        nonlocal total
        for lock in found:
            total += 1
            yield lock

    pick = heapq.nlargest if sort.startswith("-") else heapq.nsmallest
    return pick(most, counted(), key=admin.SORTS[sort.removeprefix("-")]), total


def _row(lock: LockInfo) -> Row:
    first = lock.holders[0] if lock.holders else None
    return Row(
        name=lock.name,
        label=printable(lock.name),
        holder=_who(lock),
        worker=printable(first.worker or first.host or "") if first else "",
        held_for=format_duration(lock.as_of - first.acquired_at) if first else "–",
        lapses_in=format_duration(lock.remaining) if first else "–",
        waiting=str(len(lock.waiters) or "–"),
    )


def _who(lock: LockInfo) -> str:
    if not lock.holders:
        return "nobody"
    more = f", {len(lock.holders)} of {lock.limit}" if lock.limit > 1 else ""
    return name_of(lock.holders[0]) + more


def name_of(holder: Holder) -> str:
    """Its task and id, or that it is a plain process; and whether it is at work."""
    who = f"{holder.task or 'task'} {holder.task_id}" if holder.task_id else "a process"
    note = " (queued)" if holder.is_queued else " (ended)" if holder.is_kept else ""
    return printable(who) + note
