"""What the recipes write, as text: checked before anything is sent."""

from __future__ import annotations

import json
import math
from typing import Any

from celery_locks.errors import LockUsageError
from celery_locks.validation import check_name

# Ten years: longer than anybody means, and well within what a server can count.
_LONGEST = 10 * 365 * 86400.0


# json.dumps would make such an encoder for each value.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def as_json(what: str, value: Any) -> str:
    """ASCII, so a lone surrogate is no trouble; NaN is no JSON and is refused."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise LockUsageError(f"{what} has no JSON form: {error}") from None


def check_key(what: str, key: object) -> str:
    try:
        check_name(key)
    except LockUsageError as error:
        raise LockUsageError(f"{what}: {error}") from None
    assert isinstance(key, str)
    return key


def check_count(what: str, count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise LockUsageError(f"{what} is {count!r}; it must be a whole number from 1")
    return count


def check_lifetime(what: str, ttl: object) -> float:
    good = isinstance(ttl, int | float) and not isinstance(ttl, bool) and math.isfinite(ttl)
    if not good or not 0.001 <= ttl <= _LONGEST:  # type: ignore[operator]
        raise LockUsageError(f"{what} is {ttl!r}; it must be a number of seconds above 0")
    return float(ttl)  # type: ignore[arg-type]
