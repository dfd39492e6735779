"""The tree of errors, from the docstring of `errors.py`, and the classes in its order."""

from __future__ import annotations

import re

from celery_locks import errors

_CLASS = re.compile(r"^(?:[│ ]*[├└]── )?(\w+)\b")


def tree() -> str:
    """Return the tree that `errors.py` draws."""
    doc = errors.__doc__ or ""
    lines = doc.partition("::\n\n")[2].splitlines()
    drawn = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    return "\n".join(drawn)


def names() -> list[str]:
    """Return all classes of errors, in the order of the tree."""
    drawn = [match[1] for line in tree().splitlines() if (match := _CLASS.match(line))]
    defined = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LockError)
    ]
    missing = set(defined).symmetric_difference(drawn)
    if missing:
        raise ValueError(f"the tree in errors.py and its classes differ: {sorted(missing)}")
    return drawn


def page() -> str:
    classes = " ".join(names())
    marker = f"<!-- generated: api celery_locks: {classes} -->"
    return f"```text\n{tree()}\n```\n\n## The classes\n\n{marker}\n"
