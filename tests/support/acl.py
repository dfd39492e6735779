"""The permissions that docs/operations/security.md tells people to give, read from that page.

What is tested is what is printed there: each block is one ``ACL SETUSER`` command.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "security.md"
PASSWORD = "pw"


def rules_of(user: str) -> list[str]:
    """The words after ``ACL SETUSER``; the password is ours."""
    found = re.search(rf"^ +ACL SETUSER ({user} .*(?:\n +\+.*)*)", PAGE.read_text(), re.MULTILINE)
    assert found, f"{PAGE.name} has no block for the user {user!r}"
    return [word.replace(">PASSWORD", f">{PASSWORD}") for word in found[1].split()]


def add_user(client: Any, user: str, *more: str) -> None:
    """``more`` are further rules, for what an application adds of its own."""
    client.execute_command("ACL", "SETUSER", *rules_of(user), *more)


def refused(client: Any) -> list[tuple[str, str]]:
    """What was not permitted, as (where, what); empty if the rules suffice."""
    entries = client.execute_command("ACL", "LOG")
    return [(str(entry["context"]), str(entry["object"])) for entry in map(_as_mapping, entries)]


def _as_mapping(entry: Any) -> dict[str, Any]:
    """redis-py gives a mapping or, unparsed, a flat list."""
    if not isinstance(entry, dict):
        entry = dict(zip(entry[::2], entry[1::2], strict=True))
    return {_text(key): _text(value) for key, value in entry.items()}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
