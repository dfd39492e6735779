"""The history of a lock: what operators did to it, and the holds that ended."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from celery_locks.admin.humanize import format_count, format_duration, format_time
from celery_locks.core.locks import Locks
from celery_locks.store.commands.admin import AdminCommands, HistoryPage
from celery_locks.types import HistoryEntry
from celery_locks.validation import check_name

_SHOWN = 5

Stream = Literal["log", "past"]


def history(
    locks: Locks, name: str | None = None, *, limit: int = 100, only_actions: bool = False
) -> list[HistoryEntry]:
    """Return what operators did and which holds ended, of one lock or of all, the latest first.

    The server keeps about 1000 actions and 1000 holds per shard. A hold is recorded when it ends,
    if it lasted a second, or when somebody finds it lapsed.
    """
    if name is not None:
        check_name(name)
    roots = locks.commands.roots if name is None else [locks.commands.root(name)]
    streams: tuple[Stream, ...] = ("log",) if only_actions else ("log", "past")
    entries = heapq.merge(
        *(_read(locks, root, stream) for root in roots for stream in streams),
        key=lambda entry: entry.at,
        reverse=True,
    )
    return list(islice((entry for entry in entries if name in (None, entry.name)), limit))


def _read(locks: Locks, root: str, stream: Stream) -> Iterator[HistoryEntry]:
    commands, before = AdminCommands(locks.commands), ""
    while True:
        page: HistoryPage = locks.perform(commands.history(root, before, of=stream))
        yield from page.entries
        before = page.before
        if not before:
            return


def describe_entry(entry: HistoryEntry) -> str:
    """Describe an operator's action, or the end of a hold, in a sentence."""
    holders = ", ".join(str(holder) for holder in entry.holders[:_SHOWN]) or "nobody"
    if entry.held_for is not None:
        what = f"{holders} {_describe_end(entry, format_duration(entry.held_for))}."
    else:
        because = f"Reason: {entry.why}" if entry.why else "No reason was given."
        what = f"{entry.by or 'somebody'} {_describe_action(entry, holders)}. {because}"
    return f"{format_time(entry.at)}: {what}"


def _describe_action(entry: HistoryEntry, holders: str) -> str:
    if entry.act == "reset":
        return f"allowed the work for {entry.name!r} to run again"
    if entry.act == "pause":
        return f"paused {entry.name!r}{_until(entry)}"
    if entry.act == "resume":
        return f"resumed {entry.name!r}"
    if entry.act == "limit":
        return f"set the limit of {entry.name!r} to {entry.limit}{_until(entry)}"
    if entry.act == "limit_reset":
        return f"reset the limit of {entry.name!r}"
    if entry.act == "purge":
        return _describe_purge(entry, holders)
    if entry.act == "rate_pause":
        return f"paused the rate {entry.name!r}{_until(entry)}"
    if entry.act == "rate_resume":
        return f"resumed the rate {entry.name!r}"
    if entry.act == "rate":
        rate = " and ".join(entry.rate.split())
        return f"set the rate {entry.name!r} to {rate}{_until(entry)}"
    if entry.act == "rate_reset":
        return f"reset the rate {entry.name!r}"
    if entry.act == "stop":
        return f"asked {holders} to stop and release {entry.name!r}"
    return f"took lock {entry.name!r} from {holders}"


def _describe_purge(entry: HistoryEntry, messages: str) -> str:
    count = entry.count or len(entry.holders)
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    removed = format_count(count, "parked message")
    return f"removed {removed} from the queue of {entry.name!r}: {messages}{more}"


def _until(entry: HistoryEntry) -> str:
    return f" until {format_time(entry.until)}" if entry.until else ""


def _describe_end(entry: HistoryEntry, held_for: str) -> str:
    if entry.act == "lapsed":
        return f"let lock {entry.name!r} lapse after {held_for}: {entry.why}"
    if entry.why:
        return f"had lock {entry.name!r} for {held_for}: {entry.why}"
    return f"released lock {entry.name!r} after {held_for}"
