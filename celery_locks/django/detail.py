"""One lock with all details, as text for the template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks import admin
from celery_locks.admin import Detail, Liveness, format_duration, format_time
from celery_locks.admin.connect import Locks
from celery_locks.django.listing import name_of
from celery_locks.printable_text import printable
from celery_locks.types import HistoryEntry, Holder, LockInfo

_MAX_HISTORY = 20
_LABELS = {
    "ttl": "TTL",
    "pid": "PID",
    "task_id": "Task ID",
    "replaced": "Replacements (self.replace)",
    "nested": "Acquired by the task's own code",
}
# A grace period helps these; the others cannot receive a stop request.
_CAN_STOP = ("running", "renewed", "absent", "silent")
_FIRST = ("task", "task_id", "worker", "host", "pid")
_SHOWN_ELSEWHERE = (
    *("holders", "waiters", "name", "as_of", "remaining", "default_grace"),
    *("acquired_at", "expires_at", "owner", "pause", "limit_override"),
)


@dataclass(frozen=True, slots=True)
class HolderBox:
    """One holder; ``token`` is as stored, for the buttons.

    ``default_grace`` is how many seconds it needs to stop, 0 if it does not seem to be running.
    """

    token: str
    who: str
    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    default_grace: float


@dataclass(frozen=True, slots=True)
class WaiterRow:
    """A row of the table of waiters; ``task_id`` is that of a parked message, as stored."""

    position: int
    who: str
    worker: str
    pid: str
    waits_for: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row of the history."""

    name: str
    label: str
    at: str
    by: str
    what: str
    whom: str
    reason: str
    is_of_rate: bool


@dataclass(frozen=True, slots=True)
class DetailPage:
    """The whole page; a lock that nobody holds or waits for has only its history."""

    sentences: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    holders: tuple[HolderBox, ...] = ()
    waiters: tuple[WaiterRow, ...] = ()
    history: tuple[HistoryRow, ...] = ()
    is_paused: bool = False  # itself, not by a pattern
    is_limited: bool = False
    parked: int = 0


def read_page(locks: Locks, name: str, app: Any) -> DetailPage:
    """Read a lock and its history; Celery is asked whether the holders are alive."""
    history = tuple(_history_row(e) for e in admin.history(locks, name, limit=_MAX_HISTORY))
    if locks.info(name) is None:
        # `why` would search all locks for a task with this id.
        return DetailPage(
            (f"Nobody holds lock {printable(repr(name))} or waits for it.",), history=history
        )
    answer = admin.why(locks, name, app)
    detail = next((found for found in answer.locks if found.lock.name == name), None)
    sentences = tuple(printable(sentence) for sentence in answer.sentences)
    return _page(detail, sentences, history) if detail else DetailPage(sentences, history=history)


def read_history(locks: Locks, limit: int) -> tuple[HistoryRow, ...]:
    """Return what operators did, to any lock."""
    return tuple(_history_row(e) for e in admin.history(locks, limit=limit, only_actions=True))


def holder_of(locks: Locks, name: str, token: str, app: Any = None) -> HolderBox | None:
    """Return one holder; with an app, Celery is asked whether it is alive."""
    detail = admin.info(locks, name, app)
    liveness = detail.liveness_of(token) if detail else None
    return _holder_box(detail.lock, liveness) if detail and liveness else None


def _page(
    detail: Detail, sentences: tuple[str, ...], history: tuple[HistoryRow, ...]
) -> DetailPage:
    lock, usual, seconds = detail.lock, detail.usual, detail.likely_to_end_in
    facts = detail.as_dict() | {
        "usual": usual and f"{format_duration(usual.held_for)}, from its last {usual.holds} holds",
        "likely_to_end_in": seconds and format_duration(seconds),
    }
    return DetailPage(
        sentences=sentences,
        facts=tuple(_facts(facts)),
        holders=tuple(_holder_box(lock, liveness) for liveness in detail.liveness),
        waiters=tuple(
            _waiter(lock, position, waiter) for position, waiter in enumerate(lock.waiters, 1)
        ),
        history=history,
        is_paused=lock.pause is not None and not lock.pause.glob,
        is_limited=lock.limit_override is not None,
        parked=lock.parked,
    )


def _holder_box(lock: LockInfo, liveness: Liveness) -> HolderBox:
    holder = liveness.holder
    values = holder.as_dict()
    facts = {name: values[name] for name in _FIRST}
    since = format_time(holder.acquired_at)
    facts["held for"] = f"{format_duration(lock.as_of - holder.acquired_at)}, since {since}"
    facts["expires in"] = f"{format_duration(holder.expires_at - lock.as_of)} unless renewed"
    facts |= {**values, "ttl": f"{holder.ttl:g} s", "retries": max(0, holder.retries)}
    # How often the task called self.replace(), which is rare.
    facts["replaced"] = holder.replaced or None
    return HolderBox(
        token=holder.token,
        who=name_of(holder),
        verdict=liveness.verdict,
        sentence=printable(liveness.sentence),
        facts=tuple(_facts(facts)),
        default_grace=lock.default_grace if liveness.verdict in _CAN_STOP else 0.0,
    )


def _facts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield all fields with their labels, so that fields added later are shown too."""
    for name, value in values.items():
        if name in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, dict | list | tuple):
            value = json.dumps(value) if value else None
        if value is not None:
            yield _LABELS.get(name, name.replace("_", " ").capitalize()), printable(str(value))


def _waiter(lock: LockInfo, position: int, waiter: Holder) -> WaiterRow:
    return WaiterRow(
        position,
        name_of(waiter),
        printable(waiter.worker or waiter.host or "–"),
        str(waiter.pid or "–"),
        format_duration(lock.as_of - waiter.acquired_at),
        waiter.task_id if waiter.is_parked else None,
    )


def _history_row(entry: HistoryEntry) -> HistoryRow:
    return HistoryRow(
        name=entry.name,
        label=printable(entry.name),
        at=format_time(entry.at),
        by=printable(entry.by or "–"),
        what=_what(entry),
        whom=printable(", ".join(map(str, entry.holders)) or "nobody"),
        reason=printable(entry.why or "–"),
        is_of_rate=entry.act == "rate" or entry.act.startswith("rate_"),
    )


def _what(entry: HistoryEntry) -> str:
    if entry.held_for is not None:
        preposition = "after" if entry.act == "lapsed" else "for"
        return f"{printable(entry.act)} {preposition} {format_duration(entry.held_for)}"
    phrases = {
        "stop": "asked to stop",
        "force_release": "taken",
        "reset": "completed work was reset",
        "pause": "paused",
        "resume": "resumed",
        "limit": f"limit set to {entry.limit}",
        "limit_reset": "limit reset",
        "purge": f"{entry.count} parked removed",
        "rate_pause": "rate paused",
        "rate_resume": "rate resumed",
        "rate": f"rate set to {printable(entry.rate)}",
        "rate_reset": "rate reset",
    }
    return phrases.get(entry.act, printable(entry.act))
