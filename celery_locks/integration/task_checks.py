"""Checks of a task's options where they are written; the errors say what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from celery_locks import options as lock_options
from celery_locks import settings
from celery_locks.errors import LockUsageError
from celery_locks.integration.internals import is_decorated
from celery_locks.integration.lock_name import BY_ARGUMENTS, GROUP, parameters_of
from celery_locks.rates import RateRule

ATTRIBUTES = {f"lock_{name}": name for name in lock_options.WORDS}
# Names that can only mean a lock option, and that Celery would ignore.
_UNMISTAKABLE = {
    *("on_conflict", "on_lost", "on_unavailable", "on_stop", "at_least", "pending_ttl"),
    "once_failed",
}
MISPLACED = frozenset({*ATTRIBUTES, *_UNMISTAKABLE})


def refuse_misplaced(task: Any, options: Mapping[str, Any]) -> None:
    name = next(iter(MISPLACED.intersection(options)))
    option = ATTRIBUTES.get(name, name)
    raise LockUsageError(
        f"task {task.name}: {name} is no option of a call; write lock={{{option!r}: …}} instead"
    )


def refuse_unprefixed(attributes: Mapping[str, Any], where: str) -> None:
    """Refuse ``@app.task(on_conflict=…)``, which sets an attribute that nothing reads.

    In a class body the other names may be the user's own attributes.
    """
    names = set(lock_options.WORDS) if is_decorated(attributes) else _UNMISTAKABLE
    for name in names.intersection(attributes):
        if name != "on_retry" or not callable(attributes[name]):  # that one is Celery's handler
            raise LockUsageError(f"{where}: {name} has no effect; write lock_{name} instead")


def refuse_coroutine(function: Any, where: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise LockUsageError(
            f"{where}: async functions are not supported: Celery does not await them, so the lock "
            "would be free before the work begins; write a plain function"
        )


def check_rates(task: Any, rules: Sequence[RateRule], where: str) -> None:
    """Refuse keys and functions of rates that do not fit the task's parameters."""
    for rule in rules:
        for option, function in (("key", rule.key), ("rate", rule.rate), ("cost", rule.cost)):
            if callable(function):
                parameters_of(task).check_function(function, option, where)
        if isinstance(rule.key, str):
            parameters_of(task).check(rule.key, where)


def check_fair_by(task: Any, fair_by: lock_options.Key | None, where: str) -> None:
    """Refuse a template or function for ``fair_by`` that does not fit the task's parameters."""
    if callable(fair_by):
        parameters_of(task).check_function(fair_by, "fair_by", where)
    elif isinstance(fair_by, str):
        parameters_of(task).check(GROUP + fair_by, where)


def check_task(task: Any, app: Any) -> None:
    """Check a task's options when it is created: its key fits, every option has an effect."""
    where, key = f"task {task.name}", task._lock_values.get("key")
    for option in ("key", "limit"):
        value = task._lock_values.get(option)
        for function in value if lock_options.is_several(value) else [value]:
            if callable(function):
                parameters_of(task).check_function(function, option, where)
    for template in key if lock_options.is_several(key) else [key]:
        if isinstance(template, str) and template != BY_ARGUMENTS:
            parameters_of(task).check(template, where)
    check_fair_by(task, task._lock_values.get("fair_by"), where)
    check_rates(task, task._lock_values.get("rates", ()), where)
    if task._lock_own:
        try:
            defaults = settings.task_options(app)
        except LockUsageError:
            return  # wrong settings are reported by the first use of the locks, not by this task
        try:
            options = lock_options.combined(defaults, task._lock_values)
        except LockUsageError as error:
            raise LockUsageError(f"{where}: {error}") from None
        lock_options.refuse_idle(task._lock_own, options, where)
