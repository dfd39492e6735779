"""What operators ask about locks and do to them, as values; nothing is printed here.

The surfaces (command line, web, Django, metrics) call this and hold no rules of their own.

``listing``     the list of locks, filtered
``liveness``    whether a holder is alive
``explain``     why a task does not run, in sentences
``deadlocks``   what the holders of a lock wait for
``durations``   how long a hold usually takes
``suggest``     locks with a similar name
``actions``     release a lock by force, ask its holders to stop
``bulk``        release many locks
``history``     what operators did, and holds that ended
``stale_locks`` locks of dead or stuck holders, and ``sweep``; with ``lost_reservations``, ``jobs``
                (what happens to the jobs of dead workers) and ``pruning``
``checks``      mistakes in the setup
``completed``   work that is marked as done
``counts``      the counters behind the metrics
``access``      how a surface reaches the locks
``humanize``    durations, times and counts as text

An ``app`` is a Celery app; without one the answers do not include Celery's.
"""

from celery_locks.admin.actions import current_operator, find_holders, force_release, stop
from celery_locks.admin.bulk import BulkRelease, Target, force_release_many
from celery_locks.admin.checks import Finding, check, check_server, locked_tasks
from celery_locks.admin.completed import list_done, reset_done
from celery_locks.admin.durations import Usual, is_at_work, usual
from celery_locks.admin.explain import Why, likely_end, why
from celery_locks.admin.history import describe_entry, history
from celery_locks.admin.humanize import format_count, format_duration, format_time
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
from celery_locks.admin.redelivery import Job
from celery_locks.admin.similar_names import suggest
from celery_locks.admin.stale_locks import (
    QUEUED_FOR,
    TIMES_USUAL,
    Stale,
    StaleLocks,
    Swept,
    stale,
    sweep,
)
from celery_locks.integration.worker_inspection import PATIENCE, ActiveReport

__all__ = [
    "PATIENCE",
    "QUEUED_FOR",
    "SORTS",
    "SUSPECT",
    "TIMES_USUAL",
    "ActiveReport",
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
    "find_holders",
    "force_release",
    "force_release_many",
    "format_count",
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
    "locked_tasks",
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
