"""The commands of the metrics: counts that all processes add to, and a count of the locks. Pure.

The counts of a prefix are one hash in its first shard. Its size is bounded, and it expires a month
after the last addition; see ``add_metrics.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_locks.store import scripts
from celery_locks.store.commands.locks import CALL_LIMIT, LockCommands, lock_keys
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import Arg, PlainCommand

_HSCAN = PlainCommand("HSCAN")
_LIFETIME_MS = 30 * 86400 * 1000
# A process that cannot reach the server repeats the same batch until it can.
_REMEMBERED_MS = 3600 * 1000
_MAX_FIELDS = 20_000
_TALLY_PAGE = 50
BATCH = 500


class MetricField(NamedTuple):
    """The field of a count: the series, the task and one more label."""

    series: str
    task: str = ""
    label: str = ""


Counts = Mapping[MetricField, int]


class Tally(NamedTuple):
    """The number of locks of a task; ``oldest`` is the longest hold in seconds.

    ``paused`` locks belong to no task. ``parked`` messages do not count as ``waiting``;
    ``oldest_parked`` is how long the first of them waits, in seconds.
    """

    held: int = 0
    stale: int = 0
    oldest: float = 0.0
    queued: int = 0
    waiting: int = 0
    paused: int = 0
    parked: int = 0
    oldest_parked: float = 0.0

    def __add__(self, other: object) -> Tally:
        assert isinstance(other, Tally)
        return Tally(
            self.held + other.held,
            self.stale + other.stale,
            max(self.oldest, other.oldest),
            self.queued + other.queued,
            self.waiting + other.waiting,
            self.paused + other.paused,
            self.parked + other.parked,
            max(self.oldest_parked, other.oldest_parked),
        )


class MetricsCommands:
    """Builds the calls for the metrics of one prefix."""

    def __init__(self, commands: LockCommands) -> None:
        self._commands = commands
        self._root = commands.roots[0]

    def count(self, process: str, number: int, counts: Sequence[tuple[MetricField, int]]) -> Call:
        """Add a numbered batch of counts: False if the server counted it before."""
        keys = (f"{self._root}metrics", f"{self._root}metrics:{process}")
        args: list[Arg] = [number, _REMEMBERED_MS, _LIFETIME_MS, _MAX_FIELDS]
        for field, amount in counts:
            args += (*(_plain(part) for part in field), amount)
        return Call(scripts.ADD_METRICS, self._root, keys, tuple(args), bool, CALL_LIMIT)

    def counts(self, cursor: str = "0") -> Call:
        """Read a page of the counts: ({field: amount}, next cursor, "0" at the end)."""

        def parse(reply: Any) -> tuple[dict[MetricField, int], str]:
            flat = reply[1]
            found = {
                MetricField(*flat[i].decode(errors="replace").split("\t")): int(flat[i + 1])
                for i in range(0, len(flat), 2)
            }
            return found, reply[0].decode()

        args: tuple[Arg, ...] = (cursor, "COUNT", 1000)
        return Call(_HSCAN, self._root, (f"{self._root}metrics",), args, parse, CALL_LIMIT)

    def tally(self, cursor: str = "") -> Operation[tuple[list[tuple[str, Tally]], str]]:
        """Count a page of the locks: ([(task, ``Tally``)…], next cursor, "" at the end)."""
        root, names, cursor = yield from self._commands.names("index", cursor, _TALLY_PAGE)
        if not names:
            return [], cursor

        def parse(reply: Any) -> list[tuple[str, Tally]]:
            paused = [("", Tally(paused=reply[0]))] if reply[0] else []
            return paused + [_task_tally(*reply[i : i + 8]) for i in range(1, len(reply), 8)]

        keys = tuple(key for name in names for key in lock_keys(root, name))
        tallies = yield Call(scripts.COUNT_HOLDERS, root, keys, (), parse, CALL_LIMIT)
        return tallies, cursor


def _task_tally(
    task: bytes,
    held: int,
    stale: int,
    oldest: int,
    queued: int,
    waiting: int,
    parked: int,
    oldest_parked: int,
) -> tuple[str, Tally]:
    name = _plain(task.decode(errors="replace"))
    return name, Tally(
        *(held, stale, oldest / 1000, queued, waiting),
        parked=parked,
        oldest_parked=oldest_parked / 1000,
    )


def _plain(part: str) -> str:
    """Return the text without the separator, encodable as UTF-8 and at most 200 characters."""
    return part.replace("\t", " ")[:200].encode(errors="replace").decode()
