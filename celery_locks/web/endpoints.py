"""What can be asked, in one table, for the routes and for their description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from celery_locks.admin import QUEUED_FOR, TIMES_USUAL, LockState
from celery_locks.web import handlers as answers
from celery_locks.web.context import WebContext
from celery_locks.web.holders import TOKEN as _TOKEN
from celery_locks.web.holders import HoldersField
from celery_locks.web.params import Param, Params


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One question: where it is asked, with which fields, and who answers it.

    The fields of a GET are parameters and those of a POST are in the body, but for those that are
    in the path. ``answer`` names its schema; ``refusals`` are statuses beyond everybody's.
    ``is_slow``: it asks workers, or reads more than one lock or the shared list.
    """

    method: Literal["GET", "POST"]
    path: str
    about: str
    run: Callable[[WebContext, Params], dict[str, Any]]
    answer: str
    fields: tuple[Param, ...] = ()
    refusals: tuple[int, ...] = ()
    is_slow: bool = False

    @property
    def in_path(self) -> tuple[Param, ...]:
        return tuple(one for one in self.fields if f"{{{one.name}}}" in self.path)

    @property
    def elsewhere(self) -> tuple[Param, ...]:
        return tuple(one for one in self.fields if one not in self.in_path)


def _name(about: str, **more: Any) -> Param:
    return Param("name", "name", about, **more)


_LONGEST = 1000
_ID = Param("id", "text", "The task's id.", required=True, least=1, most=_LONGEST)
_TASK = Param("task", "text", "Held or waited for by this task; * and ? as in glob.", most=_LONGEST)
_WORKER = Param("worker", "text", "Held or waited for by this worker.", most=_LONGEST)
_REASON = Param("reason", "text", "Why, for the record.", default="", most=500)
_BY = Param("by", "text", "Who you are, for the record.", default="", most=200)
_GRACE = Param(
    "grace",
    "number",
    "Ask the holder to stop first, and give it so many seconds; null: the lock's default_grace.",
    default=0,
    least=0,
    most=answers.LONGEST_GRACE,
    or_null=True,
)


def _limit(default: int, most: int) -> Param:
    return Param("limit", "whole", "How many at most.", default=default, least=1, most=most)


_LISTED = (
    Param("glob", "text", "Of names: * is any text, ? any one character.", most=_LONGEST),
    Param(
        "search",
        "text",
        "Of names and of the ids of the tasks that hold or wait; * and ? as in glob.",
        most=_LONGEST,
    ),
    _TASK,
    _WORKER,
    Param(
        "state",
        "text",
        "Held, waited for, queued, or suspect: its holder may be dead.",
        choices=(*get_args(LockState), answers.SUSPECT),
    ),
    Param("sort", "text", "By what.", default="name", choices=tuple(answers.ORDERS)),
    Param(
        "order",
        "text",
        "By name and remaining from the least, else from the longest, if not said.",
        choices=("asc", "desc"),
    ),
    _limit(100, 500),
    Param("offset", "whole", "How many to leave out.", default=0, least=0, most=10**9),
)
_ONLY_ACTS = Param("only_acts", "flag", "Without the holds that ended.", default=False)
_QUEUED_FOR = Param(
    "queued_for",
    "number",
    "Seconds after a publish from which its message is looked for.",
    default=QUEUED_FOR,
    least=0,
    most=1e9,
)
_TIMES_USUAL = Param(
    "times_usual",
    "number",
    "Also those held for so many times as long as their task's past holds.",
    default=TIMES_USUAL,
    least=1,
    most=1e9,
)
_HELD_FOR = Param("older_than", "number", "Also those held for so many seconds.", least=0, most=1e9)
_SWEPT = (
    Param("dry_run", "flag", "Only say what would be freed.", default=False),
    Param(
        "wait",
        "number",
        "Seconds to wait until a silent worker's renewal is overdue too.",
        default=0,
        least=0,
        most=60,
    ),
    _QUEUED_FOR,
    _BY,
)
_SUBJECT = Param("subject", "name", "A lock's name or a task's id.", required=True)
_GRACE_FOR_ALL = "Ask the holders to stop first, and give all of them so many seconds."
_HOLDERS = HoldersField("holders", "text", "Whom to take locks from.", required=True)
_KEY = Param("key", "name", "The key that the work was done for.", required=True)
_OF_LOCK = _name("The lock's name.", required=True)

ENDPOINTS = (
    Endpoint("GET", "/api/v1/me", "What you may do here.", answers.me, "Me"),
    Endpoint("GET", "/api/v1/locks", "Locks held or waited for.", answers.list_, "Locks", _LISTED),
    Endpoint(
        "GET",
        "/api/v1/locks/info",
        "One lock: who holds it and is that one alive, who waits, what was.",
        answers.info,
        "Detail",
        (_OF_LOCK,),
        (404,),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/why",
        "In sentences: who is in the way of this lock or task.",
        answers.why,
        "Why",
        (_SUBJECT,),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/history",
        "What was done to a lock, or to any, and its past holds; the latest first.",
        answers.history,
        "History",
        (_name("The lock's name; all if not said."), _limit(100, 1000), _ONLY_ACTS),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/stale",
        "Locks whose holder an operator should look at.",
        answers.stale,
        "StaleLocks",
        (_HELD_FOR, _TIMES_USUAL, _QUEUED_FOR),
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/check",
        "What is set up wrongly.",
        answers.check,
        "Findings",
        is_slow=True,
    ),
    Endpoint(
        "GET",
        "/api/v1/locks/done",
        "Work that is marked as done.",
        answers.done,
        "DoneWork",
        (
            Param("glob", "text", "Of keys: * is any text, ? any one character.", most=_LONGEST),
            _limit(100, 1000),
        ),
        is_slow=True,
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/done/reset",
        "Let the work for a key be done again.",
        answers.reset_done,
        "Reset",
        (_KEY, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/release",
        "Take a lock from its holder, who is told; the next in line gets it.",
        answers.release,
        "Freed",
        (_OF_LOCK, _TOKEN, _REASON, _BY, _GRACE),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/release-many",
        "Take locks from the holders named, and from nobody who came after them.",
        answers.release_many,
        "FreedMany",
        (
            _HOLDERS,
            replace(_REASON, required=True, default=None, least=1),
            _BY,
            replace(_GRACE, about=_GRACE_FOR_ALL, or_null=False),
        ),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/stop",
        "Ask a lock's holder to stop; it keeps the lock until it ends.",
        answers.stop,
        "AskedToStop",
        (_OF_LOCK, _TOKEN, _REASON, _BY),
        (404,),
    ),
    Endpoint(
        "POST",
        "/api/v1/locks/sweep",
        "Free the locks of workers that are gone.",
        answers.sweep,
        "Swept",
        _SWEPT,
        (409,),
    ),
    Endpoint(
        "GET",
        "/api/v1/tasks/locks",
        "The locks that tasks hold, one for each holder.",
        answers.task_locks,
        "TaskLocks",
        (_TASK, _WORKER, _limit(1000, 10_000)),
    ),
    Endpoint(
        "GET",
        "/api/v1/tasks/{id}/lock",
        "The locks that a task holds.",
        answers.task_lock,
        "TaskLock",
        (_ID,),
    ),
    Endpoint(
        "POST",
        "/api/v1/tasks/{id}/release-lock",
        "Take from a task what it holds.",
        answers.release_task,
        "FreedTask",
        (_ID, _REASON, _BY, _GRACE),
        (404,),
    ),
)
