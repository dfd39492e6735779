"""What the calls of a store say, read back from their arguments.

Only this file knows the layout of the arguments: the tests of the layers above stay as they are
when it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery_locks.store.commands.locks import LockCommands, Mark
from celery_locks.store.commands.replies import LockPage, RenewReply, Wait
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import PlainCommand
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


def _name_of(key: str) -> str:
    """Return the name of the lock whose holders are under this key."""
    return key.partition("}:h:")[2]


def read_acquire(call: Call) -> SentAcquire:
    token, record, _known_number, *options = call.args
    ms, alive = str(record).split()[0], 0.0
    if "wait" in options:
        alive = int(options[options.index("wait") + 1]) / 1000
    name = _name_of(call.keys[0])
    return SentAcquire(name, str(token), int(ms) / 1000, str(record), alive, tuple(options))


def read_release(call: Call) -> SentRelease:
    more: list[Any]
    token, *rest = call.args
    keep_ms, next_token, *more = rest or (0, "")
    note = more.pop() if len(more) % 2 else None
    keys = [key.removeprefix(call.root) for key in call.keys[2:]]
    marks = [
        Mark(key, value, int(ms) / 1000)
        for key, value, ms in zip(keys, more[::2], more[1::2], strict=True)
    ]
    name = _name_of(call.keys[0])
    return SentRelease(name, str(token), int(keep_ms) / 1000, str(next_token), marks, note)


def read_renewals(call: Call) -> list[SentRenewal]:
    return [
        SentRenewal(_name_of(key), str(token), int(ms) / 1000)
        for key, token, ms in zip(call.keys, call.args[::2], call.args[1::2], strict=False)
    ]


def names_in(call: Call) -> set[str]:
    """Return the names of the locks that a renewal or a release is about."""
    if call.script.name == "renew":
        return {renewal.name for renewal in read_renewals(call)}
    return {read_release(call).name}


def renew_reply(
    *lost: str, revoked: dict[str, Revocation] | None = None, stops: Iterable[str] = ()
) -> RenewReply:
    """Return the reply of a renewal: which tokens are lost, and whose holders are to stop."""
    return RenewReply(frozenset(lost), revoked or {}, frozenset(stops))


class OneCallCommands(LockCommands):
    """The commands, but each read of several calls is one, which replies with its result."""

    def waits(self, root: str, owners: Sequence[str]) -> Operation[list[Wait]]:
        waits: list[Wait] = yield Call(PlainCommand("waits"), root, (), tuple(owners), list, 1.0)
        return waits

    def page(self, cursor: str = "", *_: Any, **__: Any) -> Operation[LockPage]:
        page: LockPage = yield Call(PlainCommand("page"), cursor, (), (), list, 1.0)
        return page
