"""The text of one argument in a lock's name, and the final form of a name. Pure.

A value has one text, the same before and after it was sent in a message: a UUID, a date or a
``Decimal`` is the text that JSON makes of it, a tuple is a list. Values that differ after the
message have different texts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from celery_locks.errors import LockUsageError
from celery_locks.validation import RESERVED_ENDINGS

NAME_LENGTH = 200
_HEAD = 150

# The first characters of values that are not bare texts.
OPENINGS = '"[{('
# A number or constant of JSON: a text that looks like one is quoted.
_SCALAR = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-][0-9]+)?|null|true|false|NaN|-?Infinity"
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_ENDS_IN_DIGEST = re.compile("…#[0-9a-f]{32}$").search


@lru_cache
def bare_text(stop: str | None) -> re.Pattern[str]:
    """Return a pattern for texts that need no quotes if ``stop`` ends them."""
    letters = "." if stop is None else f"[^{re.escape(stop)}]"
    return re.compile(rf"(?!(?:{_SCALAR})\Z)(?![{re.escape(OPENINGS)}]){letters}*", re.DOTALL)


def written(value: Any, stop: str | None) -> str:
    """Return the text of a plain value; its type and, before ``stop``, its end are unambiguous.

    ``stop`` is the character that follows, None at the end of the template, or "" if no character
    can mark the end.
    """
    if isinstance(value, str):
        is_bare = stop != "" and bare_text(stop).fullmatch(value)
        return value if is_bare else _json(value)
    text = str(value) if type(value) is int else _json(value)
    if isinstance(value, list | dict) or stop is None or (stop and stop not in text):
        return text
    return f"({text})"


def formatted(text: str, stop: str | None) -> str:
    """Return the text for the output of a format, which is always a text, also if it has digits."""
    ends_by_itself = stop is None or (stop != "" and stop not in text)
    return text if ends_by_itself and text[:1] not in (*OPENINGS,) else _json(text)


def stable_text(parameter: str, value: Any) -> str:
    """Return the value as JSON."""
    return _json(plain_value(parameter, value))


def plain_value(parameter: str, value: Any) -> Any:
    """Return a JSON-safe value; refuse what a message cannot carry, naming the parameter."""
    kind = type(value)
    if kind is str or (kind is int and value.bit_length() < 64):
        return value  # the usual case
    try:
        plain = _plain(value)
        _json(plain)
        return plain
    except (TypeError, ValueError, RecursionError) as error:
        raise LockUsageError(
            f"argument {parameter!r} has no stable text to lock by ({error}); "
            "name the arguments that matter in a key, or use a function as key"
        ) from None


def shortened(name: str) -> str:
    """Return a short name unchanged, a long one as its head and a digest of the whole.

    A name that looks like one that only this library makes is shortened too: one that ends in a
    digest, or has a reserved ending.
    """
    if name.isascii() and len(name) <= NAME_LENGTH and not name.endswith(RESERVED_ENDINGS):
        return name
    try:
        data = name.encode()
    except UnicodeEncodeError as error:
        raise LockUsageError(f"the lock name {name!r} has no UTF-8 form: {error.reason}") from None
    is_short = len(data) <= NAME_LENGTH
    if is_short and not name.endswith(RESERVED_ENDINGS) and not _ENDS_IN_DIGEST(name):
        return name
    head = data[:_HEAD].decode(errors="ignore")
    return f"{head}…#{hashlib.sha256(data).hexdigest()[:32]}"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((_plain(item) for item in value), key=_json)
    return _of_other_type(value)


def _plain_key(key: Any) -> str:
    """Return the key of a mapping as JSON writes it: always a text."""
    plain = _plain(key)
    return plain if isinstance(plain, str) else _json(plain)


def _of_other_type(value: Any) -> Any:
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    raise TypeError(f"{type(value).__name__} is none of the types that have one")
