"""One page of the list, as text for the template.

Up to ``MAX_SORTED`` locks are sorted, by default the longest held first. A longer list is shown in
the server's order, so that the first page costs the same however many locks there are; a click on
a column header sorts them all, which takes about a second for ten thousand. After ``MAX_SECONDS``
the list is cut, and the page says so.
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
from celery_locks.admin.connect import Locks
from celery_locks.printable_text import printable
from celery_locks.types import Holder, LockInfo

PAGE_SIZE = 100
MAX_SORTED = 1000
_LAST_PAGE = 100_000
_DEFAULT_SORT = "held"
# Web servers give up on a request after 30 s.
MAX_SECONDS = 10.0

STATES = get_args(LockState)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters, sort and page in the URL; invalid values are ignored."""

    q: str = ""
    task: str = ""
    worker: str = ""
    state: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, params: Any) -> ListQuery:
        texts = {name: params.get(name, "").strip() for name in ("q", "task", "worker")}
        state, sort, page = (params.get(name, "") for name in ("state", "sort", "page"))
        return cls(
            **texts,
            state=state if state in STATES else "",
            sort=sort if sort.removeprefix("-") in admin.SORTS else "",
            page=min(int(page), _LAST_PAGE)
            if page.isdecimal() and len(page) < 9 and int(page)
            else 1,
        )

    def url_with(self, **changes: Any) -> str:
        """Return the URL of this list with other values, at its first page by default."""
        query = replace(self, **{"page": 1, **changes})
        values = {name: getattr(query, name) for name in self.__slots__}
        return "?" + urlencode({k: v for k, v in values.items() if v and (k, v) != ("page", 1)})

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
    """Return a pattern; text without * and ? matches anywhere, as usual in Django's admin."""
    if not text or admin.is_glob(text):
        return text or None
    return f"*{text}*"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the list; ``name`` is as stored, the rest is text to be shown."""

    name: str
    label: str
    holder: str
    worker: str
    held_for: str
    expires_in: str
    waiting: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page; ``total`` is None if not all locks were read.

    ``exact`` is the lock with exactly the searched name, if it is not on this page; ``read`` is the
    number of locks that were read, if the list was cut.
    """

    rows: tuple[Row, ...] = ()
    exact: Row | None = None
    read: int | None = None
    has_next: bool = False
    total: int | None = None
    sort: str = ""


def read_page(locks: Locks, query: ListQuery) -> ListPage:
    """Read the locks that match, no more than needed for the page."""
    reader = _Reader(locks)
    found = filter(admin.wanted(**query.filters), reader)
    first = list(islice(found, MAX_SORTED + 1))
    everything: Iterable[LockInfo] = chain(first, found)
    sort = query.sort or (_DEFAULT_SORT if len(first) <= MAX_SORTED else "")
    total = None
    end = query.page * PAGE_SIZE
    if sort:
        everything, total = _sorted(everything, sort, end + 1)
    rows = [_row(lock) for lock in islice(everything, end - PAGE_SIZE, end + 1)]
    return ListPage(
        rows=tuple(rows[:PAGE_SIZE]),
        exact=_exact(locks, query.q, rows[:PAGE_SIZE]),
        read=reader.read if reader.is_cut else None,
        has_next=len(rows) > PAGE_SIZE,
        total=total,
        sort=sort,
    )


class _Reader:
    """All locks, until the time is up."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._deadline = time.monotonic() + MAX_SECONDS
        self.read = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[LockInfo]:
        for lock in admin.list_locks(self._locks):
            self.is_cut = time.monotonic() > self._deadline
            if self.is_cut:
                return
            self.read += 1
            yield lock


def _exact(locks: Locks, name: str, rows: list[Row]) -> Row | None:
    if not name or any(row.name == name for row in rows):
        return None
    lock = locks.info(name)
    return _row(lock) if lock else None


def _sorted(found: Iterable[LockInfo], sort: str, most: int) -> tuple[list[LockInfo], int]:
    """Return the first ``most`` in this order, and how many there are in all."""
    total = 0

    def count() -> Iterator[LockInfo]:
        nonlocal total
        for lock in found:
            total += 1
            yield lock

    pick = heapq.nlargest if sort.startswith("-") else heapq.nsmallest
    return pick(most, count(), key=admin.SORTS[sort.removeprefix("-")]), total


def _row(lock: LockInfo) -> Row:
    first = lock.holders[0] if lock.holders else None
    return Row(
        name=lock.name,
        label=printable(lock.name),
        holder=_holders(lock),
        worker=printable(first.worker or first.host or "") if first else "",
        held_for=format_duration(lock.as_of - first.acquired_at) if first else "–",
        expires_in=format_duration(lock.remaining) if first else "–",
        waiting=_waiting(lock),
    )


def _waiting(lock: LockInfo) -> str:
    parked = f" ({lock.parked} parked)" if lock.parked else ""
    return str(lock.waiting or "–") + parked + (" (paused)" if lock.pause else "")


def _holders(lock: LockInfo) -> str:
    if not lock.holders:
        return "nobody"
    more = f", {len(lock.holders)} of {lock.limit}" if lock.limit > 1 else ""
    if lock.shared:
        more = f", shared by {len(lock.holders)}"
    return name_of(lock.holders[0]) + more


def name_of(holder: Holder) -> str:
    """Return its task and id, or that it is a process; and if it is queued, parked or ended."""
    who = f"{holder.task or 'task'} {holder.task_id}" if holder.task_id else holder.task
    note = " (queued)" if holder.is_queued else " (ended)" if holder.is_kept else ""
    note = " (parked)" if holder.is_parked else note
    return printable(who or "a process") + note
