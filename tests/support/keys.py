"""Keys for tasks that are locked by just what a test says."""

from typing import Any


def key_alone(key: str, *args: Any, **kwargs: Any) -> str:
    """For tasks whose first parameter is ``key``: the lock has that very name."""
    return key


def limit_in_key(key: str, *_: object, **__: object) -> int:
    """Return the number at the end of the key."""
    return int(key.rpartition(":")[2])
