"""One lock in full, as text for the template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks import admin
from celery_locks.admin import Detail, Liveness, format_duration, format_time
from celery_locks.core.locks import Locks
from celery_locks.django.listing import name_of
from celery_locks.text import printable
from celery_locks.types import HistoryEntry, Holder, LockInfo

_ACTS = 20
_LABELS = {
    "ttl": "TTL",
    "pid": "PID",
    "task_id": "Task ID",
    "replaced": "Times that it replaced itself (self.replace)",
    "nested": "Held by the task's code",
}
# Whom a grace may help; the others do not hear that they are asked to stop.
_AT_WORK = ("running", "renewed", "absent", "silent")
_FIRST = ("task", "task_id", "worker", "host", "pid")
_TOLD_ELSEWHERE = (
    *("holders", "waiters", "name", "as_of", "remaining", "default_grace"),
    *("acquired_at", "expires_at", "owner"),
)


@dataclass(frozen=True, slots=True)
class HolderBox:
    """One holder; ``token`` is as stored, for the buttons.

    ``default_grace`` are the seconds that it needs to stop, 0 if it does not seem to be at work.
    """

    token: str
    who: str
    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    default_grace: float


@dataclass(frozen=True, slots=True)
class WaiterRow:
    place: int
    who: str
    worker: str
    pid: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class ActRow:
    name: str
    label: str
    at: str
    by: str
    what: str
    whom: str
    reason: str


@dataclass(frozen=True, slots=True)
class DetailPage:
    """A lock that nobody holds or waits for has only its history."""

    sentences: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    holders: tuple[HolderBox, ...] = ()
    waiters: tuple[WaiterRow, ...] = ()
    acts: tuple[ActRow, ...] = ()


def page_of(locks: Locks, name: str, app: Any) -> DetailPage:
    acts = tuple(_act(act) for act in admin.history(locks, name, limit=_ACTS))
    if locks.info(name) is None:
        # `why` would look for a task of this id, in all the locks there are.
        return DetailPage(
            (f"Nobody holds lock {printable(repr(name))} or waits for it.",), acts=acts
        )
    answer = admin.why(locks, name, app)
    detail = next((one for one in answer.locks if one.lock.name == name), None)
    sentences = tuple(printable(sentence) for sentence in answer.sentences)
    return _with(detail, sentences, acts) if detail else DetailPage(sentences, acts=acts)


def acts_of_all(locks: Locks, most: int) -> tuple[ActRow, ...]:
    """What operators did, to any lock."""
    return tuple(_act(act) for act in admin.history(locks, limit=most, only_actions=True))


def holder_of(locks: Locks, name: str, token: str, app: Any = None) -> HolderBox | None:
    """One holder; with an app, Celery is asked whether it is alive."""
    detail = admin.info(locks, name, app)
    for alive in detail.liveness if detail else ():
        if detail and alive.holder.token == token:
            return _box(detail.lock, alive)
    return None


def _with(detail: Detail, sentences: tuple[str, ...], acts: tuple[ActRow, ...]) -> DetailPage:
    lock, usual, seconds = detail.lock, detail.usual, detail.likely_to_end_in
    describe_entry = detail.as_dict() | {
        "usual": usual and f"{format_duration(usual.held_for)}, by its last {usual.holds} holds",
        "likely_to_end_in": seconds and format_duration(seconds),
    }
    return DetailPage(
        sentences=sentences,
        facts=tuple(_facts(describe_entry)),
        holders=tuple(_box(lock, alive) for alive in detail.liveness),
        waiters=tuple(_waiter(lock, place, one) for place, one in enumerate(lock.waiters, 1)),
        acts=acts,
    )


def _box(lock: LockInfo, alive: Liveness) -> HolderBox:
    holder = alive.holder
    said = holder.as_dict()
    describe_entry = {word: said[word] for word in _FIRST}
    since = format_time(holder.acquired_at)
    describe_entry["held for"] = (
        f"{format_duration(lock.as_of - holder.acquired_at)}, since {since}"
    )
    describe_entry["lapses in"] = (
        f"{format_duration(holder.expires_at - lock.as_of)} unless renewed"
    )
    describe_entry |= {**said, "ttl": f"{holder.ttl:g} s", "retries": max(0, holder.retries)}
    # How often the task has called self.replace(), which hardly any does.
    describe_entry["replaced"] = holder.replaced or None
    return HolderBox(
        token=holder.token,
        who=name_of(holder),
        verdict=alive.verdict,
        sentence=printable(alive.sentence),
        facts=tuple(_facts(describe_entry)),
        default_grace=lock.default_grace if alive.verdict in _AT_WORK else 0.0,
    )


def _facts(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Whatever the value has to say of itself, so that what is added to it later is shown too."""
    for word, value in said.items():
        if word in _TOLD_ELSEWHERE:
            continue
        if isinstance(value, dict | list | tuple):
            value = json.dumps(value) if value else None
        if value is not None:
            yield _LABELS.get(word, word.replace("_", " ").capitalize()), printable(str(value))


def _waiter(lock: LockInfo, place: int, waiter: Holder) -> WaiterRow:
    return WaiterRow(
        place,
        name_of(waiter),
        printable(waiter.worker or waiter.host or "–"),
        str(waiter.pid or "–"),
        format_duration(lock.as_of - waiter.acquired_at),
    )


def _act(act: HistoryEntry) -> ActRow:
    return ActRow(
        name=act.name,
        label=printable(act.name),
        at=format_time(act.at),
        by=printable(act.by or "–"),
        what=_what(act),
        whom=printable(", ".join(map(str, act.holders)) or "nobody"),
        reason=printable(act.why or "–"),
    )


def _what(act: HistoryEntry) -> str:
    if act.held_for is not None:
        preposition = "after" if act.act == "lapsed" else "for"
        return f"{printable(act.act)} {preposition} {format_duration(act.held_for)}"
    words = {"stop": "asked to stop", "force_release": "taken", "reset": "done work was reset"}
    return words.get(act.act, printable(act.act))
