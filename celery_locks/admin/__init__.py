"""What an operator asks of the locks, as values; nothing is printed here.

The surfaces (command line, web, plain functions) call this and hold no rules of their own.
``listing.py``: which locks there are. ``liveness.py``: whether a holder lives. ``explain.py``:
the answer in sentences. ``acts.py``: taking a lock, and the record of it. ``bulk.py``: taking many.
``leftovers.py``: what was left behind. ``jobs.py``: what happens to the jobs of dead workers.
``trimming.py``: what is kept beyond need. ``lint.py``: what is set up wrongly. ``done.py``: work
that is marked as done. ``usual.py``: how long a hold usually takes. ``suggest.py``: which lock was
probably meant.

An ``app`` is a Celery app; where there is none, the answers do without Celery's.
"""

from celery_locks.admin.actions import current_operator, force_release, history, stop
from celery_locks.admin.bulk import BulkRelease, Target, force_release_many
from celery_locks.admin.checks import Finding, check, check_server
from celery_locks.admin.completed import list_done, reset_done
from celery_locks.admin.durations import Usual, is_at_work, usual
from celery_locks.admin.explain import (
    Why,
    describe_entry,
    format_duration,
    format_time,
    likely_end,
    why,
)
from celery_locks.admin.jobs import Job
from celery_locks.admin.listing import SORTS, LockState, is_glob, list_locks, matcher, wanted
from celery_locks.admin.liveness import (
    SUSPECT,
    Detail,
    Liveness,
    ask_again,
    ask_workers,
    info,
    judge,
    verdict_of,
)
from celery_locks.admin.pruning import trim
from celery_locks.admin.stale_locks import (
    QUEUED_FOR,
    TIMES_USUAL,
    Stale,
    StaleLocks,
    Swept,
    stale,
    sweep,
)
from celery_locks.admin.suggest import suggest

__all__ = [
    "QUEUED_FOR",
    "SORTS",
    "SUSPECT",
    "TIMES_USUAL",
    "BulkRelease",
    "Detail",
    "Finding",
    "Job",
    "Liveness",
    "LockState",
    "Stale",
    "StaleLocks",
    "Swept",
    "Target",
    "Usual",
    "Why",
    "ask_again",
    "ask_workers",
    "check",
    "check_server",
    "current_operator",
    "describe_entry",
    "force_release",
    "force_release_many",
    "format_duration",
    "format_time",
    "history",
    "info",
    "is_at_work",
    "is_glob",
    "judge",
    "likely_end",
    "list_done",
    "list_locks",
    "matcher",
    "reset_done",
    "stale",
    "stop",
    "suggest",
    "sweep",
    "trim",
    "usual",
    "verdict_of",
    "wanted",
    "why",
]
