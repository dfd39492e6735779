"""What operators ask about locks and do to them, as values; nothing is printed here.

The surfaces (command line, web, Django, metrics) call this and hold no rules of their own.

``listing``     the list of locks, filtered, and locks with a similar name
``liveness``    whether a holder is alive
``explain``     why a task does not run, in sentences
``durations``   how long a hold usually takes
``actions``     release locks by force, ask their holders to stop, reset completed work, prune
``overrides``   pause locks, set limits
``parked``      messages that wait on the lock server: their position in line, and ``purge``
``history``     what operators did, and holds that ended
``stale_locks`` locks of dead or stuck holders, and ``sweep``; with ``lost_reservations``, ``jobs``
                (what happens to the jobs of dead workers)
``checks``      mistakes in the setup
``rates``       rates that delay callers; pause them, set others
``counts``      the counters behind the metrics
``access``      how a surface reaches the locks
``humanize``    durations, times and counts as text

An ``app`` is a Celery app; without one the answers do not include Celery's.
"""

from celery_locks.admin.actions import (
    BulkRelease,
    Target,
    current_operator,
    find_holders,
    force_release,
    force_release_many,
    list_done,
    reset_done,
    stop,
    trim,
)
from celery_locks.admin.checks import Finding, check, check_server, locked_tasks
from celery_locks.admin.durations import Usual, is_at_work, usual
from celery_locks.admin.explain import Why, likely_end, why
from celery_locks.admin.history import describe_entry, history
from celery_locks.admin.humanize import format_count, format_duration, format_time
from celery_locks.admin.listing import (
    SORTS,
    LockState,
    is_glob,
    list_locks,
    matcher,
    suggest,
    wanted,
)
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
from celery_locks.admin.overrides import (
    Overridden,
    list_patterns,
    pause,
    reset_limit,
    resume,
    set_limit,
)
from celery_locks.admin.parked import Purged, purge
from celery_locks.admin.rates import (
    describe_rate,
    list_rates,
    pause_rate,
    rate_info,
    reset_rate,
    resume_rate,
    set_rate,
)
from celery_locks.admin.redelivery import Job
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
    "Overridden",
    "Purged",
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
    "describe_rate",
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
    "list_patterns",
    "list_rates",
    "locked_tasks",
    "matcher",
    "pause",
    "pause_rate",
    "purge",
    "rate_info",
    "reset_done",
    "reset_limit",
    "reset_rate",
    "resume",
    "resume_rate",
    "set_limit",
    "set_rate",
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
