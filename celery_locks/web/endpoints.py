"""The table of REST endpoints, for the routes and for the OpenAPI document.

More than 300 lines: it is one table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from celery_locks.admin import QUEUED_FOR, TIMES_USUAL, LockState
from celery_locks.validation import MAX_LIMIT, MAX_SECONDS
from celery_locks.web import handlers
from celery_locks.web.context import WebContext
from celery_locks.web.params import TOKEN, HoldersParam, Param, Params, RateParam


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: its method and path, its parameters, and the function that handles it.

    Parameters are in the path if the path names them, else in the query of a GET and in the body
    of a POST. ``schema`` names that of the answer; ``errors`` are the statuses that not every
    endpoint has. ``is_slow``: it asks workers, or reads more than one lock or the shared list.
    """

    method: Literal["GET", "POST"]
    path: str
    about: str
    handler: Callable[[WebContext, Params], dict[str, Any]]
    schema: str
    params: tuple[Param, ...] = ()
    errors: tuple[int, ...] = ()
    is_slow: bool = False

    @property
    def path_params(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if f"{{{param.name}}}" in self.path)

    @property
    def other_params(self) -> tuple[Param, ...]:
        """Those in the query or in the body."""
        return tuple(param for param in self.params if param not in self.path_params)


def _name(about: str, **more: Any) -> Param:
    return Param("name", "name", about, **more)


_MAX_TEXT = 1000
_ID = Param("id", "text", "The task id.", required=True, least=1, most=_MAX_TEXT)
_TASK = Param(
    "task", "text", "Held or waited for by this task; * and ? are wildcards.", most=_MAX_TEXT
)
_WORKER = Param("worker", "text", "Held or waited for by this worker.", most=_MAX_TEXT)
_REASON = Param("reason", "text", "Why, for the history.", default="", most=500)
_BY = Param("by", "text", "Who you are, for the history.", default="", most=200)
_GRACE = Param(
    "grace",
    "number",
    "Seconds the holder gets to stop before it loses the lock; null: the lock's default_grace.",
    default=0,
    least=0,
    most=handlers.MAX_GRACE,
    or_null=True,
)


def _limit(default: int, most: int) -> Param:
    return Param(
        "limit", "whole", "Maximum number of entries.", default=default, least=1, most=most
    )


_LIST_PARAMS = (
    Param(
        "glob",
        "text",
        "Pattern of the lock's name: * is any text, ? is one character.",
        most=_MAX_TEXT,
    ),
    Param(
        "search",
        "text",
        "Text in the name, or in the id of a task that holds or waits; * and ? are wildcards.",
        most=_MAX_TEXT,
    ),
    _TASK,
    _WORKER,
    Param(
        "state",
        "text",
        "Held, waited for, queued, paused, with parked messages, or suspect (its holder may be "
        "dead).",
        choices=(*get_args(LockState), handlers.SUSPECT),
    ),
    Param("sort", "text", "Sort key.", default="name", choices=tuple(handlers.DEFAULT_ORDERS)),
    Param(
        "order",
        "text",
        "Default: ascending for name and remaining, descending for held and waiting.",
        choices=("asc", "desc"),
    ),
    _limit(100, 500),
    Param("offset", "whole", "Number of entries to skip.", default=0, least=0, most=10**9),
)
_ONLY_OPERATORS = Param(
    "only_acts", "flag", "Only what operators did; leave out past holds.", default=False
)
_QUEUED_FOR = Param(
    "queued_for",
    "number",
    "Seconds after a publish before its message is searched for in the broker.",
    default=QUEUED_FOR,
    least=0,
    most=1e9,
)
_TIMES_USUAL = Param(
    "times_usual",
    "number",
    "Also those held this many times longer than is usual for their task.",
    default=TIMES_USUAL,
    least=1,
    most=1e9,
)
_OLDER_THAN = Param(
    "older_than", "number", "Also those held for at least this many seconds.", least=0, most=1e9
)
_SWEEP_PARAMS = (
    Param("dry_run", "flag", "Only report what would be released.", default=False),
    Param(
        "wait",
        "number",
        "Seconds to wait for a silent worker's renewal to become overdue.",
        default=0,
        least=0,
        most=60,
    ),
    _QUEUED_FOR,
    _BY,
)
_SUBJECT = Param("subject", "name", "A lock name or a task id.", required=True)
_GRACE_FOR_ALL = "Seconds that all holders get to stop before they lose their locks."
_HOLDERS = HoldersParam("holders", "text", "The holders to take locks from.", required=True)
_KEY = Param("key", "name", "The idempotency key of the work.", required=True)
_LOCK_NAME = _name("The lock name.", required=True)
_NAME_OR_GLOB = _name("The lock name, or a pattern: * is any text, ? one character.", required=True)
_EXACT = Param("exact", "flag", "Take the name literally, even with * or ?.", default=False)
_WHY = replace(_REASON, required=True, default=None, least=1)
_SECONDS = Param(
    "seconds",
    "number",
    "Seconds after which it ends by itself; null: it has no end.",
    least=1,
    most=MAX_SECONDS,
    or_null=True,
)
_NEW_LIMIT = Param(
    "limit", "whole", "How many may hold the lock.", required=True, least=1, most=MAX_LIMIT
)
_TASK_ID = Param(
    "task_id", "text", "Only the message of this task; null: all.", most=_MAX_TEXT, or_null=True
)
_RATE_NAME = _name("The name of the rate.", required=True)
_NEW_RATE = RateParam(
    "rate",
    "text",
    "The rate, as '10/m' with s, m, h or d; several with spaces between them.",
    required=True,
    least=1,
    most=100,
)

ENDPOINTS = (
    Endpoint("GET", "/api/v1/me", "What you may do, and which locks these are.", handlers.me, "Me"),
    Endpoint(
        "GET",
        "/api/v1/locks",
        "Locks that are held or waited for.",
        handlers.list_,
        "Locks",
        _LIST_PARAMS,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/info",
        "One lock: its holders and whether they are alive, its waiters, its history.",
        handlers.info,
        "Detail",
        (_LOCK_NAME,),
        (404,),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/why",
        "Explain in sentences what blocks this lock or task.",
        handlers.why,
        "Why",
        (_SUBJECT,),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/history",
        "What operators did to a lock, or to all locks, and past holds; latest first.",
        handlers.history,
        "History",
        (_name("The lock name; default: all locks."), _limit(100, 1000), _ONLY_OPERATORS),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/stale",
        "Locks whose holder may be dead, or that are held for unusually long.",
        handlers.stale,
        "StaleLocks",
        (_OLDER_THAN, _TIMES_USUAL, _QUEUED_FOR),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/check",
        "Find mistakes in the configuration.",
        handlers.check,
        "Findings",
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/done",
        "Work that is marked as done.",
        handlers.done,
        "DoneWork",
        (
            Param(
                "glob",
                "text",
                "Pattern of the key: * is any text, ? is one character.",
                most=_MAX_TEXT,
            ),
            _limit(100, 1000),
        ),
        is_slow=True,
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/done/reset",
        "Allow the work for a key to run again.",
        handlers.reset_done,
        "Reset",
        (_KEY, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/release",
        "Take a lock from its holder, which is notified; the next waiter gets it.",
        handlers.release,
        "Freed",
        (_LOCK_NAME, TOKEN, _REASON, _BY, _GRACE),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/release-many",
        "Take locks from the given holders, and never from a later holder.",
        handlers.release_many,
        "FreedMany",
        (
            _HOLDERS,
            _WHY,
            _BY,
            replace(_GRACE, about=_GRACE_FOR_ALL, or_null=False),
        ),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/stop",
        "Ask a lock's holder to stop; it keeps the lock until it has stopped.",
        handlers.stop,
        "AskedToStop",
        (_LOCK_NAME, TOKEN, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/patterns",
        "The patterns of lock names that are paused.",
        handlers.patterns,
        "Patterns",
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/pause",
        "Let nobody acquire a lock, or those that match a pattern; their holders finish.",
        handlers.pause,
        "Overridden",
        (_NAME_OR_GLOB, _WHY, _BY, _SECONDS, _EXACT),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/resume",
        "End a pause; the next waiters get the lock.",
        handlers.resume,
        "Overridden",
        (_NAME_OR_GLOB, _REASON, _BY, _EXACT),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/limit",
        "Set how many may hold a lock, whatever its callers say.",
        handlers.set_limit,
        "Overridden",
        (_LOCK_NAME, _NEW_LIMIT, _WHY, _BY, _SECONDS),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/limit/reset",
        "Let the limits of the callers apply again.",
        handlers.reset_limit,
        "Overridden",
        (_LOCK_NAME, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "GET",
        "/api/v1/rates",
        "Rates that delay callers, are pushed back, or that operators paused or set.",
        handlers.rates,
        "Rates",
        (_limit(100, 1000),),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/rates/info",
        "One rate.",
        handlers.rate_info,
        "Rate",
        (_RATE_NAME,),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/rates/pause",
        "Let nothing start at a rate; delayed tasks come back later.",
        handlers.pause_rate,
        "OverriddenRate",
        (_RATE_NAME, _WHY, _BY, _SECONDS),
    ),
    Endpoint(
        "POST",
        "/api/v1/rates/resume",
        "End the pause of a rate.",
        handlers.resume_rate,
        "OverriddenRate",
        (_RATE_NAME, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/rates/set",
        "Set a rate, whatever its callers say.",
        handlers.set_rate,
        "OverriddenRate",
        (_RATE_NAME, _NEW_RATE, _WHY, _BY, _SECONDS),
    ),
    Endpoint(
        "POST",
        "/api/v1/rates/reset",
        "Let the rates of the callers apply again.",
        handlers.reset_rate,
        "OverriddenRate",
        (_RATE_NAME, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/purge",
        "Remove the parked messages of a lock, or that of one task: these tasks never run.",
        handlers.purge,
        "Purged",
        (_LOCK_NAME, _WHY, _BY, _TASK_ID),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/sweep",
        "Release the locks of dead workers.",
        handlers.sweep,
        "Swept",
        _SWEEP_PARAMS,
        (409,),
    ),
    Endpoint(
        "GET",
        "/api/v1/tasks/locks",
        "The locks that tasks hold, one entry for each holder.",
        handlers.task_locks,
        "TaskLocks",
        (_TASK, _WORKER, _limit(1000, 10_000)),
    ),
    Endpoint(
        "GET",
        "/api/v1/tasks/{id}/lock",
        "The locks that a task holds.",
        handlers.task_lock,
        "TaskLock",
        (_ID,),
    ),
    Endpoint(
        "POST",
        "/api/v1/tasks/{id}/release-lock",
        "Take from a task all locks that it holds.",
        handlers.release_task,
        "FreedTask",
        (_ID, _REASON, _BY, _GRACE),
        (404,),
    ),
)
