"""Checks of the recipes' arguments, before anything is sent."""

from __future__ import annotations

import json
import math
from typing import Any

from celery_locks.errors import LockUsageError
from celery_locks.validation import check_name

# Ten years: longer than anybody needs, and well within the range of the server.
_MAX_LIFETIME = 10 * 365 * 86400.0


# json.dumps would create such an encoder for each value.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def as_json(what: str, value: Any) -> str:
    """Encode a value as ASCII, so that a lone surrogate does no harm; NaN is refused."""
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
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool) and math.isfinite(ttl)
    if not is_number or not 0.001 <= ttl <= _MAX_LIFETIME:  # type: ignore[operator]
        raise LockUsageError(f"{what} is {ttl!r}; it must be a number of seconds above 0")
    return float(ttl)  # type: ignore[arg-type]
