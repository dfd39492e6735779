"""What the calls of a store say, read back from their arguments.

Only this file knows the layout of the arguments: the tests of the layers above stay as they are
when it changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from celery_locks.store.calls import Call
from celery_locks.store.commands.replies import Lost
from celery_locks.store.commands.requests import Mark
from celery_locks.types import Revocation


class SentAcquire(NamedTuple):
    """An acquire; ``alive`` is 0 if it does not join the queue."""

    name: str
    token: str
    ttl: float
    record: str
    alive: float
    extras: tuple[Any, ...]


class SentRelease(NamedTuple):
    """A release; ``note`` is None if the hold is not noted in the history."""

    name: str
    token: str
    keep_for: float
    next_token: str
    marks: list[Mark]
    note: str | None


class SentRenewal(NamedTuple):
    """One lease of a renewal."""

    name: str
    token: str
    ttl: float


def read_acquire(call: Call) -> SentAcquire:
    name, token, ms, record, *rest = call.args
    alive = float(str(rest[0]).split()[0]) / 1000 if rest else 0.0
    return SentAcquire(str(name), str(token), int(ms) / 1000, str(record), alive, tuple(rest[1:]))


def read_release(call: Call) -> SentRelease:
    more: list[Any]
    name, token, *rest = call.args
    keep_ms, next_token, *more = rest or (0, "")
    note = more.pop() if len(more) % 3 else None
    marks = [
        Mark(mark, value, int(ms) / 1000)
        for mark, value, ms in zip(more[::3], more[1::3], more[2::3], strict=True)
    ]
    return SentRelease(str(name), str(token), int(keep_ms) / 1000, str(next_token), marks, note)


def read_renewals(call: Call) -> list[SentRenewal]:
    names, tokens, ttls = call.args[::3], call.args[1::3], call.args[2::3]
    return [
        SentRenewal(str(name), str(token), int(ms) / 1000)
        for name, token, ms in zip(names, tokens, ttls, strict=False)
    ]


def names_in(call: Call) -> set[str]:
    """Return the names of the locks that a renewal or a release is about."""
    if call.script.name == "renew":
        return {renewal.name for renewal in read_renewals(call)}
    return {read_release(call).name}


def renew_reply(
    *lost: str, revoked: dict[str, Revocation] | None = None, stops: Iterable[str] = ()
) -> Lost:
    """Return the reply of a renewal: which tokens are lost, and whose holders are to stop."""
    reply = Lost(lost)
    reply.revoked, reply.stops = revoked or {}, frozenset(stops)
    return reply
