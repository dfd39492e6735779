"""What a task's author can get wrong: refused where it is written, with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from celery_locks import options as lock_options
from celery_locks import settings
from celery_locks.errors import LockUsageError
from celery_locks.integration.naming import BY_ARGUMENTS, parameters_of

ATTRIBUTES = {f"lock_{word}": word for word in lock_options.WORDS}
# What nobody means but as a lock's option, and Celery would ignore.
_UNMISTAKABLE = {"on_conflict", "on_lost", "on_unavailable", "on_stop", "at_least", "pending_ttl"}
MISPLACED = frozenset({*ATTRIBUTES, *_UNMISTAKABLE})


def refuse_misplaced(task: Any, options: Mapping[str, Any]) -> None:
    name = next(iter(MISPLACED.intersection(options)))
    word = ATTRIBUTES.get(name, name)
    raise LockUsageError(
        f"task {task.name}: {name} is no option of a call; write lock={{{word!r}: …}} instead"
    )


def refuse_unprefixed(attributes: Mapping[str, Any], where: str) -> None:
    """``@app.task(on_conflict=…)`` makes an attribute that nobody reads.

    In a class body the other words may well be the user's own.
    """
    words = set(lock_options.WORDS) if "_decorated" in attributes else _UNMISTAKABLE
    for word in words.intersection(attributes):
        if word != "on_retry" or not callable(attributes[word]):  # that one is Celery's handler
            raise LockUsageError(f"{where}: {word} has no effect; write lock_{word} instead")


def refuse_coroutine(function: Any, where: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise LockUsageError(
            f"{where}: async functions are not supported: Celery does not await them, so the lock "
            "would be free before the work begins; write a plain function"
        )


def check_task(task: Any, app: Any) -> None:
    """What can be known of a task's options when it is made: its key fits, nothing is idle."""
    where, key = f"task {task.name}", task._lock_values.get("key")
    if callable(key):
        parameters_of(task).check_function(key, where)
    elif key is not None and key != BY_ARGUMENTS:
        parameters_of(task).check(key, where)
    if task._lock_own:
        try:
            defaults = settings.task_options(app)
        except LockUsageError:
            return  # wrong settings are not this task's fault; whoever uses the locks first says so
        try:
            options = lock_options.combined(defaults, task._lock_values)
        except LockUsageError as error:
            raise LockUsageError(f"{where}: {error}") from None
        lock_options.refuse_idle(task._lock_own, options, where)
