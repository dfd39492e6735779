"""The commands for messages that are kept until they start. Pure.

The contract of each script is at the head of its file; ``keep_message.lua`` describes the data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, LockCommands, milliseconds
from celery_locks.store.commands.replies import holder_of, name_in
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import PlainCommand
from celery_locks.types import Holder

_SET, _PEXPIRE = PlainCommand("SET"), PlainCommand("PEXPIRE")
_PAGE = 100


class KeptMessage(NamedTuple):
    """A message that should exist: the lock that is reserved for it, and who holds the reservation.

    ``published_at`` is the server's time of the last publish in ms.
    """

    name: str
    holder: Holder
    published_at: int


class KeptCommands:
    """Builds the calls."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands

    def keep(self, name: str, token: str, message: str) -> Call:
        """Keep the message of a reservation: True, or False if the reservation is gone."""
        root = self._commands.root(name)
        return Call(scripts.KEEP_MESSAGE, root, (), (token, message), bool, CALL_LIMIT)

    def scan(self, older_than: float) -> Operation[list[KeptMessage]]:
        """Read the messages that were published so many seconds ago and have not started."""
        found: list[KeptMessage] = []
        for root in self._commands.roots:
            cursor = "0"
            while True:
                args = (cursor, _PAGE, milliseconds(older_than))
                cursor, page = yield Call(
                    scripts.SCAN_KEPT, root, (), args, _parse_page, CALL_LIMIT
                )
                found += page
                if cursor == "0":
                    break
        return found

    def recover(self, kept: KeptMessage) -> Call:
        """Take a lost message to publish it again: its text, "" if it need not be published."""
        root = self._commands.root(kept.name)
        keys, args = (f"{root}h:{kept.name}",), (kept.holder.token, kept.published_at)
        return Call(scripts.RECOVER_MESSAGE, root, keys, args, bytes.decode, CALL_LIMIT)

    def begin_search(self, seconds: float) -> Call:
        """Claim the search for lost messages for so many seconds: True if nobody else has it."""
        root = self._commands.roots[0]
        args = (1, "NX", "PX", milliseconds(seconds))
        return Call(_SET, root, (f"{root}search",), args, bool, CALL_LIMIT)

    def postpone_search(self, seconds: float) -> Call:
        """Let the next search begin in so many seconds, not earlier."""
        root = self._commands.roots[0]
        return Call(_PEXPIRE, root, (f"{root}search",), (milliseconds(seconds),), bool, CALL_LIMIT)


def _parse_page(reply: Any) -> tuple[str, list[KeptMessage]]:
    cursor, *flat = reply
    page = [
        KeptMessage(name_in(record), holder_of(token, b"0", record), int(published))
        for token, published, record in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]
    return cursor.decode(), page
