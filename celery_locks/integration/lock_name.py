"""The name of the lock for one call of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_locks import name_from_arguments
from celery_locks.errors import LockUsageError
from celery_locks.integration.internals import dump_models
from celery_locks.options import Key, LockOptions
from celery_locks.validation import QUEUED

BY_ARGUMENTS = "*"  # the key of ``@single_instance`` without ``key=``


def parameters_of(task: Any) -> name_from_arguments.Parameters:
    """Return the parameters that a caller passes: without self, through every wrapper.

    Cached together with the function that they were read from.
    """
    run = task.run
    known: tuple[Any, name_from_arguments.Parameters] | None = vars(task).get("_lock_parameters")
    if known is None or known[0] != run:
        known = task._lock_parameters = (run, name_from_arguments.Parameters(run, task.name))
    return known[1]


def lock_name(
    task: Any, options: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Render the lock name; None if the lock is by task id and there is no id (a direct call)."""
    try:
        return _name(task, options.key, args, kwargs)
    except LockUsageError as error:
        raise LockUsageError(f"task {task.name}: {error}") from error.__cause__


def queue_name(
    task: Any, lock: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the name of a message's reservation; None for locks by task id."""
    if lock.key is None:
        return None
    name = lock_name(task, lock, args, kwargs)
    return name + QUEUED if name and lock.scope == "queued" else name


def _name(
    task: Any, key: Key | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    if key is None:
        # Celery's own tasks (chord_unlock and others) take no lock.
        is_job = task.request.id and not task.name.startswith("celery.")
        return name_from_arguments.shortened(f"{task.name}[{task.request.id}]") if is_job else None
    args, kwargs = dump_models(task, args, kwargs)
    if callable(key):
        return name_from_arguments.from_callable(key, args, kwargs)
    parameters = parameters_of(task)
    if key == BY_ARGUMENTS:
        return name_from_arguments.from_all(task.name, parameters.bound(args, kwargs))
    return parameters.name(key, args, kwargs)
