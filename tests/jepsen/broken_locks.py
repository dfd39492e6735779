"""Locks with a mistake, on a real server: the checker must convict them."""

from __future__ import annotations

from celery_locks.store.scripts import ACQUIRE, RELEASE, Script

# The script, the text that is right, and the mistake.
MISTAKES: dict[str, tuple[Script, str, str]] = {
    "releases by name": (
        RELEASE,
        "local was_held = redis.call('ZREM', held, token)",
        "local was_held = redis.call('DEL', held)",
    ),
    "ignores the limit": (
        ACQUIRE,
        "return in_use < (operator_limit or limit > 0 and limit or math.huge)",
        "return true",
    ),
}


def install(mistake: str) -> None:
    """Make the scripts of this process wrong; before the first call is made."""
    script, right, wrong = MISTAKES[mistake]
    assert right in script.text, f"{script.name}.lua has changed; write the mistake again"
    script._text = script.text.replace(right, wrong)
    script._sha = ""
