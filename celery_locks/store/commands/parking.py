"""The commands for parked messages: what workers do to wake them. Pure.

The contract of each script is at the head of its file; ``lib/park.lua`` describes the data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, LockCommands, lock_keys
from celery_locks.store.commands.replies import holder_of
from celery_locks.store.effects import Call
from celery_locks.store.scripts import PlainCommand
from celery_locks.types import Holder
from celery_locks.validation import history_text

# Messages and names in one poll.
BATCH = 50
# Waiters that one call looks at. Each batch is an entry of the history, which has about 1000.
PURGE_BATCH = 250
_ZRANK = PlainCommand("ZRANK")


class ParkedMessage(NamedTuple):
    """A message as it was parked, and the token of its reservation.

    ``number`` is new each time that the message is parked. ``superseded_by``: the id of the task
    whose message took its place; it shall not run. Empty for a message that was woken.
    ``is_repeat``: a worker took it before and did not confirm in time that it is published.
    """

    token: str
    number: int
    message: str
    superseded_by: str = ""
    is_repeat: bool = False


class PurgedMessage(NamedTuple):
    """A parked message that was removed: who would have run it, and the message itself."""

    holder: Holder
    message: str


class Purge(NamedTuple):
    """A batch of removed messages; the next one begins at ``cursor``, "" at the end."""

    messages: list[PurgedMessage]
    cursor: str
    until: str


class Due(NamedTuple):
    """What a worker has taken to do: locks to look at, and messages to publish.

    ``next_in``: seconds until the next entry is due; None if there is none.
    """

    next_in: float | None
    names: list[str]
    messages: list[ParkedMessage]


class ParkCommands:
    """Builds the calls. ``root`` is that of a shard."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands

    def poll(self, root: str) -> Call:
        """Take what is due: a ``Due``. Others get it again if it is not confirmed in time."""
        return Call(scripts.POLL_DUE, root, (), (BATCH,), _parse_due, CALL_LIMIT)

    def wake_waiters(self, root: str, names: Sequence[str]) -> Call:
        """Give the free slots of these locks to those who wait: True if a message was woken."""
        keys = tuple(key for name in names for key in lock_keys(root, name))
        return Call(scripts.WAKE_WAITERS, root, keys, (), bool, CALL_LIMIT)

    def confirm(
        self, root: str, messages: Sequence[ParkedMessage], kept: Collection[str] = ()
    ) -> Call:
        """Forget messages that the broker has; one that is parked again stays. Returns how many.

        Those whose token is in ``kept`` are kept until they start (``kept_messages.py``).
        """
        args = tuple(a for it in messages for a in (it.token, it.number, int(it.token in kept)))
        return Call(scripts.CONFIRM_WAKE, root, (), args, int, CALL_LIMIT)

    def give_back(self, root: str, messages: Sequence[ParkedMessage]) -> Call:
        """Leave messages to other workers, soon; return how many."""
        tokens = tuple(message.token for message in messages)
        return Call(scripts.RETURN_DUE, root, (), tokens, int, CALL_LIMIT)

    def unpark(self, name: str, token: str, *, publish: bool) -> Call:
        """Take a parked message out of the queue, to publish or to delete it: the message."""
        root = self._commands.root(name)
        keys, args = lock_keys(root, name), (token, int(publish))
        return Call(scripts.UNPARK, root, keys, args, bytes.decode, CALL_LIMIT)

    def position(self, name: str, token: str) -> Call:
        """Read the position of a waiter in the queue, from 1; None if it does not wait."""

        def parse(reply: Any) -> int | None:
            return None if reply is None else int(reply) + 1

        root = self._commands.root(name)
        keys = lock_keys(root, name)[1:]
        return Call(_ZRANK, root, keys, (token,), parse, CALL_LIMIT)

    def purge(
        self,
        name: str,
        token: str = "",
        by: str = "",
        why: str = "",
        *,
        cursor: str = "",
        until: str = "",
        request_id: str,
    ) -> Call:
        """Remove the parked message with ``token``, or a batch of all: a ``Purge``.

        ``cursor`` and ``until`` are those of the batch before. ``by`` and ``why`` are logged, and
        ``request_id`` is a token by which the server recognises a repeated call.
        """

        def parse(reply: Any) -> Purge:
            following, last, *flat = reply
            messages = [
                PurgedMessage(holder_of(*flat[i : i + 3]), flat[i + 3].decode())
                for i in range(0, len(flat), 4)
            ]
            return Purge(messages, following.decode(), last.decode())

        root = self._commands.root(name)
        keys = (*lock_keys(root, name), f"{root}p:{request_id}")
        texts = history_text("by", by), history_text("reason", why)
        args = (token, cursor, until, PURGE_BATCH, *texts)
        return Call(scripts.PURGE, root, keys, args, parse, CALL_LIMIT)


def _parse_due(reply: Any) -> Due:
    next_in, names, *messages = reply
    return Due(
        None if next_in < 0 else next_in / 1000,
        [name.decode() for name in names],
        [
            ParkedMessage(
                token.decode(),
                int(number),
                message.decode(),
                unquote(job.decode()[1:]),
                bool(is_repeat),
            )
            for token, number, message, job, is_repeat in messages
        ],
    )
