"""Suggestions for a lock name that does not exist: names that look like it."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice

from celery_locks.admin.humanize import join_names
from celery_locks.admin.listing import is_glob, list_locks, matcher
from celery_locks.core.locks import Locks

_SHOWN = 3
_MOST_NAMES = 5000  # comparing more takes longer than typing the name again


def suggest(locks: Locks, name: str) -> str:
    """Return a sentence with locks of a similar name; "" if there is none."""
    found = (lock.name for lock in islice(list_locks(locks), _MOST_NAMES))
    names = [other for other in found if other != name]
    if is_glob(name) and (matching := sorted(filter(matcher(name), names))):
        return f"Write one name, not a pattern: {name!r} matches {join_names(matching, 'and')}."
    near = sorted(other for other in names if name in other)
    near = near or get_close_matches(name, names, _SHOWN, cutoff=0.7)
    return f"Did you mean {join_names(near, 'or')}?" if near else ""
