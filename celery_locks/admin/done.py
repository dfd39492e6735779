"""Work that is marked as done (``once``), and letting it be done again."""

from __future__ import annotations

from collections.abc import Iterator

from celery_locks.admin.acts import this_operator
from celery_locks.flows import new_token
from celery_locks.locks import Locks
from celery_locks.recipes.once import DoneWork, done_work
from celery_locks.recipes.values import check_key
from celery_locks.store.recipe_verbs import RecipeVerbs

_LONGEST = 500  # of a name and of a reason, as in acts.py


def list_done(locks: Locks) -> Iterator[DoneWork]:
    """The keys whose work is marked as done (``once``)."""
    return done_work(locks)


def reset_done(locks: Locks, key: str, *, reason: str = "", by: str = "") -> bool:
    """Let the work for a key be done again; True if it was marked. ``history`` has who and why."""
    check_key("reset", key)
    words = (by or this_operator())[:_LONGEST], reason[:_LONGEST]
    call = RecipeVerbs(locks.verbs).reset(key, f"o:{key}", new_token(), *words)
    return bool(locks.perform(call))
