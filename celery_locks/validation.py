"""Checks of user input: each refuses a wrong value with a sentence that says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeGuard

from celery_locks.errors import LockUsageError

NAME_BYTES = 512
HISTORY_TEXT = 500  # characters of a reason and of an operator's name
MIN_TTL = 1.0
MAX_SECONDS = 10 * 365 * 86400.0  # of any option: the server counts in milliseconds
MAX_LIMIT = 1_000_000
MAX_NAMES = 16  # locks that are acquired together
FOREVER = MAX_SECONDS  # what ``wait="forever"`` means
# Endings of the lock names that this library makes itself; users' names may not have them.
QUEUED = " (queued)"  # of a message, from publish to start
CLAIMED = " (claim)"  # around the creation of a claim's value
RESERVED_ENDINGS = (QUEUED, CLAIMED)

SHARED_WITH_LIMIT = (
    "shared and limit exclude each other: any number may share a lock; leave one of them out"
)

Wait = float | Literal["forever"]


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise LockUsageError(f"a lock's name must be a text that is not empty, not {name!r}")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError as error:
        raise LockUsageError(f"the lock name {name!r} has no UTF-8 form: {error.reason}") from None
    if size > NAME_BYTES:
        raise LockUsageError(
            f"the lock name {name[:40]!r}… is {size} bytes long; {NAME_BYTES} is the most"
        )


def check_not_reserved(name: object) -> None:
    """Refuse a user's name with an ending that only this library uses."""
    if isinstance(name, str) and name.endswith(RESERVED_ENDINGS):
        raise LockUsageError(
            f"the lock name {name!r} ends as those that celery-locks makes itself "
            f"({', '.join(map(repr, RESERVED_ENDINGS))}); choose another name"
        )


def check_ttl(ttl: object, option: str = "ttl") -> None:
    if not _is_finite(ttl):
        raise LockUsageError(f"{option} must be a finite number of seconds, not {ttl!r}")
    _check_not_too_long(option, ttl)
    if ttl < MIN_TTL:
        raise LockUsageError(
            f"{option} is {ttl!r} s; below {MIN_TTL:g} s there is no time to renew it. "
            "A lock is given back at once when its work ends: a longer ttl costs nothing"
        )


def check_limit(limit: object, option: str = "limit") -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise LockUsageError(
            f"{option} is {limit!r}; it must be a whole number from 1 to {MAX_LIMIT}"
        )


def limits_of(limit: object, names: int) -> list[int]:
    """Return the limit of each of several locks: one number for all, or a list."""
    if not isinstance(limit, list | tuple):
        return [limit] * names  # type: ignore[list-item]  # LockSpec checks it
    if len(limit) != names:
        raise LockUsageError(
            f"limit has {len(limit)} numbers for {names} locks; write one for each, or one number"
        )
    return list(limit)


def check_several(names: Sequence[object], what: str = "name") -> None:
    """Refuse a list of names, or of keys, that is empty, too long or has one of them twice."""
    if not names:
        raise LockUsageError(f"the list of {what}s is empty; write at least one {what}")
    if len(names) > MAX_NAMES:
        raise LockUsageError(f"{len(names)} {what}s; {MAX_NAMES} locks at once is the most")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LockUsageError(f"the {what} {twice!r} is there twice; write each {what} once")


def check_flag(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise LockUsageError(f"{option} is {value!r}; write True or False")


def check_seconds(option: str, value: object) -> None:
    if not _is_seconds(value):
        raise LockUsageError(f"{option} must be a number of seconds from 0, not {value!r}")
    _check_not_too_long(option, value)


def patience_of(wait: object) -> float | None:
    """Return the seconds to wait for a busy lock; None: do not wait."""
    if wait == "forever":
        return FOREVER
    if wait is not None and not _is_seconds(wait):
        raise LockUsageError(f"wait must be a number of seconds from 0, or 'forever', not {wait!r}")
    if wait is not None:
        _check_not_too_long("wait", wait)
    return wait


def history_text(option: str, text: object) -> str:
    """Return a text for the history: cut if it is too long, refused if it cannot be stored."""
    if not isinstance(text, str):
        raise LockUsageError(f"{option} must be a text, not a {type(text).__name__}")
    kept = text[:HISTORY_TEXT]
    try:
        kept.encode()
    except UnicodeEncodeError as error:
        raise LockUsageError(f"{option} {kept[:40]!r} has no UTF-8 form: {error.reason}") from None
    return kept


def _check_not_too_long(option: str, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise LockUsageError(f"{option} is above ten years ({MAX_SECONDS:.0f} s), the most")


def _is_seconds(value: object) -> TypeGuard[float]:
    return _is_finite(value) and value >= 0


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)
