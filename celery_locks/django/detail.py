"""One lock in full, as text for the template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery_locks import admin
from celery_locks.admin import Detail, Liveness, moment, span
from celery_locks.cli.render import plain
from celery_locks.django.listing import name_of
from celery_locks.locks import Locks
from celery_locks.model import Act, Holder, LockInfo

_ACTS = 20
_LABELS = {
    "ttl": "TTL",
    "pid": "PID",
    "task_id": "Task ID",
    "replaced": "Times that it replaced itself (self.replace)",
}
# Whom a grace may help; the others do not hear that they are asked to stop.
_AT_WORK = ("running", "renewed", "absent", "silent")
_FIRST = ("task", "task_id", "worker", "host", "pid")
_TOLD_ELSEWHERE = (
    *("holders", "waiters", "name", "as_of", "remaining", "default_grace"),
    *("acquired_at", "expires_at"),
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
class Page:
    """A lock that nobody holds or waits for has only its history."""

    sentences: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    holders: tuple[HolderBox, ...] = ()
    waiters: tuple[WaiterRow, ...] = ()
    acts: tuple[ActRow, ...] = ()


def page_of(locks: Locks, name: str, app: Any) -> Page:
    acts = tuple(_act(act) for act in admin.history(locks, name, limit=_ACTS))
    if locks.info(name) is None:
        # `why` would look for a task of this id, in all the locks there are.
        return Page((f"Nobody holds lock {plain(repr(name))} or waits for it.",), acts=acts)
    answer = admin.why(locks, name, app)
    detail = next((one for one in answer.locks if one.lock.name == name), None)
    sentences = tuple(plain(sentence) for sentence in answer.sentences)
    return _with(detail, sentences, acts) if detail else Page(sentences, acts=acts)


def acts_of_all(locks: Locks, most: int) -> tuple[ActRow, ...]:
    """What operators did, to any lock."""
    return tuple(_act(act) for act in admin.history(locks, limit=most, only_acts=True))


def holder_of(locks: Locks, name: str, token: str, app: Any = None) -> HolderBox | None:
    """One holder; with an app, Celery is asked whether it is alive."""
    detail = admin.info(locks, name, app)
    for alive in detail.liveness if detail else ():
        if detail and alive.holder.token == token:
            return _box(detail.lock, alive)
    return None


def _with(detail: Detail, sentences: tuple[str, ...], acts: tuple[ActRow, ...]) -> Page:
    lock, usual, seconds = detail.lock, detail.usual, detail.likely_to_end_in
    told = detail.as_dict() | {
        "usual": usual and f"{span(usual.held_for)}, by its last {usual.holds} holds",
        "likely_to_end_in": seconds and span(seconds),
    }
    return Page(
        sentences=sentences,
        facts=tuple(_facts(told)),
        holders=tuple(_box(lock, alive) for alive in detail.liveness),
        waiters=tuple(_waiter(lock, place, one) for place, one in enumerate(lock.waiters, 1)),
        acts=acts,
    )


def _box(lock: LockInfo, alive: Liveness) -> HolderBox:
    holder = alive.holder
    said = holder.as_dict()
    told = {word: said[word] for word in _FIRST}
    since = moment(holder.acquired_at)
    told["held for"] = f"{span(lock.as_of - holder.acquired_at)}, since {since}"
    told["lapses in"] = f"{span(holder.expires_at - lock.as_of)} unless renewed"
    told |= {**said, "ttl": f"{holder.ttl:g} s", "retries": max(0, holder.retries)}
    # How often the task has called self.replace(), which hardly any does.
    told["replaced"] = holder.replaced or None
    return HolderBox(
        token=holder.token,
        who=name_of(holder),
        verdict=alive.verdict,
        sentence=plain(alive.sentence),
        facts=tuple(_facts(told)),
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
            yield _LABELS.get(word, word.replace("_", " ").capitalize()), plain(str(value))


def _waiter(lock: LockInfo, place: int, waiter: Holder) -> WaiterRow:
    return WaiterRow(
        place,
        name_of(waiter),
        plain(waiter.worker or waiter.host or "–"),
        str(waiter.pid or "–"),
        span(lock.as_of - waiter.acquired_at),
    )


def _act(act: Act) -> ActRow:
    return ActRow(
        name=act.name,
        label=plain(act.name),
        at=moment(act.at),
        by=plain(act.by or "–"),
        what=_what(act),
        whom=plain(", ".join(map(str, act.holders)) or "nobody"),
        reason=plain(act.why or "–"),
    )


def _what(act: Act) -> str:
    if act.held_for is not None:
        return f"{plain(act.act)} {'after' if act.act == 'lapsed' else 'for'} {span(act.held_for)}"
    words = {"stop": "asked to stop", "force_release": "taken", "reset": "done work was reset"}
    return words.get(act.act, plain(act.act))
