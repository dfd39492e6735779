"""Checks of a task's options where they are written; the errors say what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from celery_locks import options as lock_options
from celery_locks import settings
from celery_locks.errors import LockUsageError
from celery_locks.integration.internals import is_decorated
from celery_locks.integration.lock_name import BY_ARGUMENTS, parameters_of

ATTRIBUTES = {f"lock_{name}": name for name in lock_options.WORDS}
# Names that can only mean a lock option, and that Celery would ignore.
_UNMISTAKABLE = {"on_conflict", "on_lost", "on_unavailable", "on_stop", "at_least", "pending_ttl"}
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


def check_task(task: Any, app: Any) -> None:
    """Check a task's options when it is created: its key fits, every option has an effect."""
    where, key = f"task {task.name}", task._lock_values.get("key")
    if callable(key):
        parameters_of(task).check_function(key, where)
    elif key is not None and key != BY_ARGUMENTS:
        parameters_of(task).check(key, where)
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
