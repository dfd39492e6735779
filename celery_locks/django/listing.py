"""One page of the list, as text for the template; never more locks than the page shows.

Up to ``FEW`` locks the list is sorted, if not told otherwise the longest held first. With more it
comes as the server has it, so that the first page costs the same however many there are; a click on
a column's head sorts them all, which takes about a second for ten thousand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, get_args
from urllib.parse import urlencode

from celery_locks import admin
from celery_locks.admin import LockState, span
from celery_locks.cli.render import plain
from celery_locks.locks import Locks
from celery_locks.model import Holder, LockInfo

SIZE = 100
FEW = 1000
_LAST = 100_000
USUAL_SORT = "-held"

SORTS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda lock: lock.name,
    "held": lambda lock: max((lock.as_of - h.acquired_at for h in lock.holders), default=-1.0),
    "remaining": lambda lock: lock.remaining,
    "waiting": lambda lock: len(lock.waiters),
}
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
            sort=sort if sort.removeprefix("-") in SORTS else "",
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
    """A page; ``total`` is None where they were not all looked at."""

    rows: tuple[Row, ...] = ()
    has_next: bool = False
    total: int | None = None
    sort: str = ""


def part_of(locks: Locks, asked: Question) -> Part:
    found = admin.list_locks(locks, **asked.filters)
    first = list(islice(found, FEW + 1))
    everything: Iterable[LockInfo] = chain(first, found)
    sort = asked.sort or (USUAL_SORT if len(first) <= FEW else "")
    total = None
    end = asked.page * SIZE
    if sort:
        everything, total = _sorted(everything, sort, end + 1)
    rows = [_row(lock) for lock in islice(everything, end - SIZE, end + 1)]
    return Part(tuple(rows[:SIZE]), len(rows) > SIZE, total, sort)


def _sorted(found: Iterable[LockInfo], sort: str, most: int) -> tuple[list[LockInfo], int]:
    """So many from the top, and how many there are."""
    total = 0

    def counted() -> Iterator[LockInfo]:
        nonlocal total
        for lock in found:
            total += 1
            yield lock

    pick = heapq.nlargest if sort.startswith("-") else heapq.nsmallest
    return pick(most, counted(), key=SORTS[sort.removeprefix("-")]), total


def _row(lock: LockInfo) -> Row:
    first = lock.holders[0] if lock.holders else None
    return Row(
        name=lock.name,
        label=plain(lock.name),
        holder=_who(lock),
        worker=plain(first.worker or first.host or "") if first else "",
        held_for=span(lock.as_of - first.acquired_at) if first else "–",
        lapses_in=span(lock.remaining) if first else "–",
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
    return plain(who) + note
