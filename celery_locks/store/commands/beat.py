"""The commands of a beat: the last run of each entry of its schedule. Pure.

``name`` is the name of the beat's lock. The contract of each script is at the head of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, LockCommands
from celery_locks.store.effects import Call
from celery_locks.store.scripts import Arg

CLAIMED, CHANGED, NOT_HOLDER = 1, 0, -1


class Runs(NamedTuple):
    """The records of all entries, and whether the caller holds the lock."""

    is_holder: bool
    records: dict[str, str]


class BeatCommands:
    """Builds the calls."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands

    def claim_run(self, name: str, token: str, entry: str, before: str, record: str) -> Call:
        """Replace the record ``before`` of an entry: CLAIMED, CHANGED or NOT_HOLDER."""
        args = (token, entry, before, record)
        root = self._commands.root(name)
        return Call(scripts.CLAIM_RUN, root, _keys(root, name), args, int, CALL_LIMIT)

    def share_runs(
        self,
        name: str,
        token: str = "",
        missing: Mapping[str, str] | None = None,
        forget_before: int = 0,
    ) -> Call:
        """Read the ``Runs``; the holder adds ``missing`` ones and deletes old ones of others."""
        pairs = [text for pair in (missing or {}).items() for text in pair]
        root = self._commands.root(name)
        args: tuple[Arg, ...] = (token, forget_before, *pairs)
        return Call(scripts.SHARE_RUNS, root, _keys(root, name), args, _parse_runs, CALL_LIMIT)


def _keys(root: str, name: str) -> tuple[str, str]:
    return f"{root}h:{name}", f"{root}b:{name}"


def _parse_runs(reply: Any) -> Runs:
    texts = [text.decode() for text in reply[1:]]
    return Runs(bool(reply[0]), dict(zip(texts[::2], texts[1::2], strict=True)))
