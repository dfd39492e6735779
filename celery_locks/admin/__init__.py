"""What an operator asks of the locks, as values; nothing is printed here.

The surfaces (command line, web, plain functions) call this and hold no rules of their own.
``listing.py``: which locks there are. ``liveness.py``: whether a holder lives. ``explain.py``:
the answer in sentences. ``acts.py``: taking a lock, and the record of it. ``leftovers.py``: what
was left behind. ``jobs.py``: what happens to the jobs of dead workers. ``trimming.py``: what is
kept beyond need. ``lint.py``: what is set up wrongly. ``done.py``: work that is marked as done.
``usual.py``: how long a hold usually takes. ``suggest.py``: which lock was probably meant.

An ``app`` is a Celery app; where there is none, the answers do without Celery's.
"""

from celery_locks.admin.acts import force_release, history, stop, this_operator
from celery_locks.admin.done import list_done, reset_done
from celery_locks.admin.explain import Why, likely_end, moment, span, told, why
from celery_locks.admin.jobs import Job
from celery_locks.admin.leftovers import (
    QUEUED_FOR,
    TIMES_USUAL,
    Stale,
    StaleLocks,
    Swept,
    stale,
    sweep,
)
from celery_locks.admin.lint import Finding, check, check_server
from celery_locks.admin.listing import SORTS, LockState, is_glob, list_locks, matcher, wanted
from celery_locks.admin.liveness import Detail, Liveness, info
from celery_locks.admin.suggest import suggest
from celery_locks.admin.trimming import trim
from celery_locks.admin.usual import Usual, usual

__all__ = [
    "QUEUED_FOR",
    "SORTS",
    "TIMES_USUAL",
    "Detail",
    "Finding",
    "Job",
    "Liveness",
    "LockState",
    "Stale",
    "StaleLocks",
    "Swept",
    "Usual",
    "Why",
    "check",
    "check_server",
    "force_release",
    "history",
    "info",
    "is_glob",
    "likely_end",
    "list_done",
    "list_locks",
    "matcher",
    "moment",
    "reset_done",
    "span",
    "stale",
    "stop",
    "suggest",
    "sweep",
    "this_operator",
    "told",
    "trim",
    "usual",
    "wanted",
    "why",
]
