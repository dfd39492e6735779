"""The list of locks, filtered; read page by page, so that the server is never blocked for long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, TypedDict, Unpack, get_args

from celery_locks.admin.humanize import join_names
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUsageError
from celery_locks.store.commands.replies import LockPage
from celery_locks.types import Holder, LockInfo

LockState = Literal["held", "waiting", "queued", "paused", "parked"]


# Sort keys; each puts first what an operator looks for first.
SORTS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda lock: lock.name,
    "held": lambda lock: _oldest(lock.holders),
    "remaining": lambda lock: lock.remaining,
    # By the longest wait, not by the number of waiters: that number changes all the time.
    "waiting": lambda lock: (_oldest(lock.waiters), _oldest(lock.holders)),
}


def _oldest(holders: Iterable[Holder]) -> float:
    return min((holder.acquired_at for holder in holders), default=float("inf"))


class Filter(TypedDict, total=False):
    """What a lock must match to be listed.

    ``glob`` matches names (see ``matcher``), ``task`` is a glob too, ``worker`` is exact.
    ``search`` is a glob for names and for the ids of the tasks that hold or wait.
    ``state``: "held" by a task or process at work, "waiting": somebody waits for it, "queued": held
    by a message that no worker has started, "paused": by an operator, "parked": messages wait for
    it on the lock server.
    """

    glob: str | None
    search: str | None
    task: str | None
    worker: str | None
    state: LockState | None


def list_locks(locks: Locks, **filters: Unpack[Filter]) -> Iterator[LockInfo]:
    """List the locks that are held, waited for, paused or limited, as each page found them.

    A lock that is held throughout is listed exactly once, whatever happens to the others.
    """
    is_wanted = wanted(**filters)
    return (info for info in _all(locks) if is_wanted(info))


def list_lapsed(locks: Locks) -> Iterator[LockInfo]:
    """Locks whose holders lapsed in the last minute and were neither renewed nor replaced."""
    return _all(locks, lapsed=True)


def wanted(**filters: Unpack[Filter]) -> Callable[[LockInfo], bool]:
    """Return a predicate for these filters, for locks that have been read already."""
    return _Predicate.of(filters)


def _all(locks: Locks, *, lapsed: bool = False) -> Iterator[LockInfo]:
    seen: set[str] = set()
    cursor = ""
    while True:
        page: LockPage = locks.run(locks.commands.page(cursor, lapsed=lapsed))
        for info in page.locks:
            if info.name not in seen:
                seen.add(info.name)
                yield info
        cursor = page.cursor
        if not cursor:
            return


def is_glob(text: str) -> bool:
    return "*" in text or "?" in text


def matcher(glob: str) -> Callable[[str], bool]:
    """Compile a glob of ``*`` and ``?``; brackets are literal, because names contain them."""
    first, *others = (
        "".join("." if c == "?" else re.escape(c) for c in p) for p in glob.split("*")
    )
    # Atomic groups that match as early as possible: plain stars backtrack for ever on a long glob.
    inner = "".join(f"(?>.*?{part})" for part in others[:-1])
    last = f".*{others[-1]}" if others else ""
    pattern = re.compile(first + inner + last, re.DOTALL)
    return lambda name: pattern.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class _Predicate:
    """Whether a lock matches the filters."""

    name: Callable[[str], bool] | None
    search: Callable[[str], bool] | None
    task: Callable[[str], bool] | None
    worker: str | None
    state: LockState | None

    @classmethod
    def of(cls, filters: Filter) -> _Predicate:
        globs = (filters.get(field) for field in ("glob", "search", "task"))
        name, search, task = (matcher(str(glob)) if glob else None for glob in globs)
        state = filters.get("state")
        if state not in (None, *get_args(LockState)):
            allowed = " or ".join(repr(allowed) for allowed in get_args(LockState))
            raise LockUsageError(f"state is {state!r}; write {allowed}")
        return cls(name, search, task, filters.get("worker"), state)

    def __call__(self, info: LockInfo) -> bool:
        if self.name and not self.name(info.name):
            return False
        if self.search and not self._matches_search(info):
            return False
        if self.state and not _has_state(info, self.state):
            return False
        if not self.task and not self.worker:
            return True
        return any(self._matches_holder(holder) for holder in (*info.holders, *info.waiters))

    def _matches_search(self, info: LockInfo) -> bool:
        assert self.search
        holders = (*info.holders, *info.waiters)
        return self.search(info.name) or any(self.search(h.task_id or "") for h in holders)

    def _matches_holder(self, holder: Holder) -> bool:
        if self.worker and holder.worker != self.worker:
            return False
        return not self.task or self.task(holder.task or "")


def _has_state(info: LockInfo, state: LockState) -> bool:
    if state == "waiting":
        return bool(info.waiters)
    if state == "paused":
        return info.pause is not None
    if state == "parked":
        return info.parked > 0
    return any(holder.is_queued is (state == "queued") for holder in info.holders)


# For suggestions.
_SHOWN = 3
_MOST_NAMES = 5000  # comparing more takes longer than typing the name again


def suggest(locks: Locks, name: str) -> str:
    """Return a sentence with locks of a similar name; "" if there is none."""
    found = (lock.name for lock in islice(list_locks(locks), _MOST_NAMES))
    names = [other for other in found if other != name]
    if is_glob(name) and (matching := sorted(filter(matcher(name), names))):
        return f"Write one name, not a pattern: {name!r} matches {join_names(matching, 'and')}."
    near = sorted(other for other in names if name in other)
    near = near or get_close_matches(name, names, _SHOWN, cutoff=0.7)
    return f"Did you mean {join_names(near, 'or')}?" if near else ""
