"""The values that the commands of locks return, and how they are read from the replies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_locks.errors import LimitMismatch
from celery_locks.store.commands.requests import SUPERSEDED, Renewal
from celery_locks.store.records import holders_of, parse_located, parse_revocation
from celery_locks.types import Conflict, Holder, LockInfo, LockSpec, Revocation


class Ended(NamedTuple):
    """The rejection of an acquire with ``reject_if_ended``: this attempt of the job has ended."""

    was_replaced: bool = False  # it never started: another message replaced it
    is_being_replaced: bool = False  # another message will replace it, if that can be sent
    leaves_result: bool = True  # False: it ended without a result (``Ignore``, ``Retry``)


class Completed(NamedTuple):
    """The rejection of an acquire with ``idempotency``: the work is completed, as ``mark`` says."""

    mark: str


Rejection = Ended | Completed


class ReplacedReservation(int):
    """The fence of a grant that replaced the reservation of a message that had not started."""


class RenewReply(NamedTuple):
    """The tokens of a batch that are lost; ``revoked`` has those that an operator force-released.

    ``stops`` are tokens that are still held and whose holders are asked to stop.
    """

    lost: frozenset[str] = frozenset()
    revoked: Mapping[str, Revocation] = {}
    stops: frozenset[str] = frozenset()


class Located(dict[str, tuple[str, Holder]]):
    """Token → (lock name, Holder); ``revoked`` are the tokens that were force-released."""

    revoked: frozenset[str] = frozenset()


class LockPage(NamedTuple):
    """One page of the list; ``cursor`` is the start of the next page, "" at the end."""

    locks: list[LockInfo]
    cursor: str


class Wait(NamedTuple):
    """The lock that an owner waits for, the waiter's token and ticket, and the lock's holders."""

    owner: str
    name: str
    token: str
    ticket: int
    is_complete: bool
    """False: the lock has more holders than these."""
    holders: tuple[Holder, ...]


def parse_acquire(spec: LockSpec, reply: list[Any]) -> ReplacedReservation | Conflict | Rejection:
    """Read the reply of an acquire that is not a plain fence."""
    kind = reply[0]
    if kind == b"replaced":
        return ReplacedReservation(reply[1])
    if kind == b"ended":
        return _parse_ended(reply[1])
    if kind == b"completed":
        return Completed(reply[1].decode())
    if kind == b"limit":
        raise LimitMismatch(
            f"lock {spec.name!r} is held with limit {reply[1]}, not {spec.limit}; "
            "use one limit for a name, or another name"
        )
    _, lapses, position, now, ticket, *holders = reply
    return Conflict(
        spec.name, tuple(holders_of(holders)), max(0, lapses) / 1000, position, now / 1000, ticket
    )


def _parse_ended(ended: bytes) -> Ended:
    if ended == b"?":
        return Ended(is_being_replaced=True)
    attempt = float(ended)
    return Ended(was_replaced=attempt >= SUPERSEDED, leaves_result=attempt.is_integer())


def parse_renew(batch: Sequence[Renewal], reply: list[Any]) -> RenewReply:
    """Read the reply of a renewal; see ``renew.lua`` for the form of its entries."""
    if not reply:
        return RenewReply()
    notes = {batch[entry[0]].token: entry[1] for entry in reply if isinstance(entry, list)}
    positions = [entry for entry in reply if isinstance(entry, int)]
    return RenewReply(
        frozenset(notes) | {batch[position].token for position in positions if position >= 0},
        {token: parse_revocation(note) for token, note in notes.items()},
        frozenset(batch[-1 - position].token for position in positions if position < 0),
    )


def parse_locate(tokens: Sequence[str], reply: list[Any]) -> Located:
    """Read the reply of ``locate.lua``: for each token its record, 1 or nil."""
    found = [pair for pair in zip(tokens, reply, strict=True) if pair[1]]
    located = Located(
        (token, parse_located(token, record)) for token, record in found if record != 1
    )
    located.revoked = frozenset(token for token, record in found if record == 1)
    return located


def parse_wait(owner: str, token: str, name: str, ticket: bytes, count: int, *holders: Any) -> Wait:
    """Make a wait of an owner's waiter and its entry in the reply of ``waits.lua``."""
    known = tuple(holders_of(holders))
    return Wait(owner, name, token, int(float(ticket)), len(known) == count, known)
