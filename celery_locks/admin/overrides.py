"""What an operator sets for a lock: a pause, or a limit that wins over every caller's.

Nobody acquires a paused lock; those that hold it finish. A pattern pauses all names that match it,
also those that nobody has used yet. The server records each action (``history.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from celery_locks.admin.actions import current_operator
from celery_locks.admin.listing import is_glob, list_locks, matcher
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUsageError
from celery_locks.store.commands.admin import AdminCommands, OverrideAction, OverrideReply
from celery_locks.types import LockInfo, Override, RateInfo
from celery_locks.validation import check_limit, check_name, check_seconds


@dataclass(frozen=True, slots=True)
class Overridden:
    """The result of a pause, a resume or a change of a limit or rate, for ``name``.

    ``was_set``: it was set before. ``locks`` are those in use that it concerns, as they are now; if
    ``name`` is a rate, ``rate`` is its state.
    """

    name: str
    was_set: bool
    locks: tuple[LockInfo, ...] = ()
    rate: RateInfo | None = None

    @property
    def holders(self) -> int:
        return sum(len(lock.holders) for lock in self.locks)

    @property
    def waiters(self) -> int:
        return sum(len(lock.waiters) for lock in self.locks)


def pause(
    locks: Locks,
    name: str,
    *,
    seconds: float | None = None,
    reason: str = "",
    by: str = "",
    exact: bool = False,
) -> Overridden:
    """Let nobody acquire a lock, or those that match a glob, for ``seconds`` or until ``resume``.

    Holders keep the lock, renew it and finish. A caller gets a ``Conflict`` with ``pause``, to
    which its ``on_conflict`` applies; one that waits stays in the queue. Calls can be published
    meanwhile: a message may acquire its reservation, as nothing runs by it.

    A name with ``*`` (any text) or ``?`` (one character) is a glob, unless ``exact``. A second
    pause of the same name or glob replaces the first.
    """
    new = Override(0, by or current_operator(), reason, 0.0)
    if exact or not is_glob(name):
        return _override(locks, name, "pause", new, seconds)
    return _pause_pattern(locks, name, new, seconds, sets=True)


def resume(
    locks: Locks, name: str, *, reason: str = "", by: str = "", exact: bool = False
) -> Overridden:
    """End the pause of a name or glob, as it was given to ``pause``; the next waiters get the lock.

    A lock that a pattern has paused is resumed with that pattern only.
    """
    new = Override(0, by or current_operator(), reason, 0.0)
    if exact or not is_glob(name):
        return _override(locks, name, "resume", new)
    return _pause_pattern(locks, name, new, None, sets=False)


def set_limit(
    locks: Locks,
    name: str,
    limit: int,
    *,
    seconds: float | None = None,
    reason: str = "",
    by: str = "",
) -> Overridden:
    """Let ``limit`` hold a lock, whatever its callers say, for ``seconds`` or until it is reset.

    If more hold it already, they finish.
    """
    check_limit(limit)
    new = Override(limit, by or current_operator(), reason, 0.0)
    return _override(locks, name, "limit", new, seconds)


def reset_limit(locks: Locks, name: str, *, reason: str = "", by: str = "") -> Overridden:
    """End what ``set_limit`` set: the limits of the callers apply again."""
    new = Override(1, by or current_operator(), reason, 0.0)
    return _override(locks, name, "limit_reset", new)


def list_patterns(locks: Locks) -> list[Override]:
    """Return the patterns that are paused, by glob."""
    commands, found = AdminCommands(locks.commands), dict[str, Override]()
    for root in locks.commands.roots:
        for each in locks.perform(commands.pauses(root)):
            found.setdefault(each.glob, each)
    return [found[glob] for glob in sorted(found)]


def _override(
    locks: Locks, name: str, action: OverrideAction, new: Override, seconds: float | None = None
) -> Overridden:
    check_name(name)
    check_duration(seconds)
    call = AdminCommands(locks.commands).override(
        name, action, new, seconds or 0.0, request_id=new_token()
    )
    reply: OverrideReply = locks.perform(call)
    lock = locks.info(name)
    return Overridden(name, reply.was_set, (lock,) if lock else ())


def _pause_pattern(
    locks: Locks, glob: str, new: Override, seconds: float | None, *, sets: bool
) -> Overridden:
    """Set the pattern in every shard, then apply it to the names in use.

    If this is interrupted, repeating it does the rest.
    """
    check_name(glob)
    check_duration(seconds)
    commands, request_id = AdminCommands(locks.commands), new_token()
    pattern = Override(0, new.by, new.why, 0.0, glob=glob)
    was_set = [
        locks.perform(
            commands.pattern(root, pattern, seconds or 0.0, sets=sets, request_id=request_id)
        )
        for root in locks.commands.roots
    ]
    for root, names in _matching_names(locks, glob):
        locks.perform(commands.apply_patterns(root, names))
    return Overridden(glob, any(was_set), tuple(list_locks(locks, glob=glob)))


def _matching_names(locks: Locks, glob: str) -> Iterator[tuple[str, list[str]]]:
    matches, cursor = matcher(glob), ""
    while True:
        root, names, cursor = locks.run(locks.commands.names("index", cursor))
        if found := [name for name in names if matches(name)]:
            yield root, found
        if not cursor:
            return


def check_duration(seconds: float | None) -> None:
    """Refuse a time after which a pause or limit ends that is not above 0."""
    if seconds is not None:
        check_seconds("seconds", seconds)
        if seconds < 0.001:
            raise LockUsageError(f"seconds is {seconds!r}; it must be above 0, or None for no end")
