"""What was probably meant: the names of locks that look like one that is not there."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice

from celery_locks.admin.listing import is_glob, list_locks, matcher
from celery_locks.core.locks import Locks

_SHOWN = 3
_MOST_NAMES = 5000  # to compare more takes longer than typing the name again


def suggest(locks: Locks, name: str) -> str:
    """A sentence with the locks that may be meant; "" if none comes near."""
    found = (lock.name for lock in islice(list_locks(locks), _MOST_NAMES))
    names = [one for one in found if one != name]
    if is_glob(name) and (matching := sorted(filter(matcher(name), names))):
        return f"Write one name, not a pattern: {name!r} matches {_listed(matching, 'and')}."
    near = sorted(one for one in names if name in one)
    near = near or get_close_matches(name, names, _SHOWN, cutoff=0.7)
    return f"Did you mean {_listed(near, 'or')}?" if near else ""


def _listed(names: list[str], word: str) -> str:
    shown = [repr(name) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more")
    return f" {word} ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
