"""The name and the limit of the lock for one call of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_locks import name_from_arguments
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUsageError
from celery_locks.integration.internals import dump_models
from celery_locks.options import BY_ARGUMENTS as BY_ARGUMENTS
from celery_locks.options import Key, Limit, LockOptions, is_several
from celery_locks.validation import QUEUED, limits_of


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
    """Render the lock name; None if this call has no lock.

    That is so if its key function returns None, and for a direct call of a task that is locked by
    its id: there is no id. Of several keys it is the name of the first that gives one.
    """
    if is_several(options.key):
        return next(iter(limits_by_name(task, options, args, kwargs)), None)
    key = options.key
    try:
        return name_from_key(task, key, args, kwargs)
    except LockUsageError as error:
        raise LockUsageError(f"task {task.name}: {error}") from error.__cause__


def limits_by_name(
    task: Any, options: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, int]:
    """Return the lock names of a task with several keys, in their order, and the limit of each.

    Two keys may give the same name for a call: it is locked once, with the smaller limit.
    """
    keys: Any = options.key
    all_limits = limits_of(limit_of(task, options.limit, args, kwargs), len(keys))
    limits: dict[str, int] = {}
    for key, limit in zip(keys, all_limits, strict=True):
        name = lock_name(task, replace(options, key=key, limit=1), args, kwargs)
        if name is not None:
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def limit_of(task: Any, limit: Limit, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the limit: a number, one for each key, or the result of the user's function."""
    if not callable(limit):
        return limit
    args, kwargs = dump_models(task, args, kwargs)
    try:
        return name_from_arguments.limit_from_callable(limit, args, kwargs)
    except LockUsageError as error:
        raise LockUsageError(f"task {task.name}: {error}") from error.__cause__


# Stands before a group's template: a template needs some text of its own.
GROUP = "group:"


def group_of(
    task: Any, fair_by: Key | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return the group that takes turns with others while messages are parked; "" for none."""
    if fair_by is None:
        return ""
    key = fair_by if callable(fair_by) else f"{GROUP}{fair_by}"
    try:
        return name_from_key(task, key, args, kwargs) or ""
    except LockUsageError as error:
        raise LockUsageError(f"task {task.name}: fair_by: {error}") from error.__cause__


def queue_name(
    task: Any, lock: LockOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the name of a message's reservation; None for locks by task id and unlocked calls."""
    if lock.key is None:
        return None
    name = lock_name(task, lock, args, kwargs)
    return name + QUEUED if name and lock.scope == "queued" else name


def name_by_id(task: Any) -> str | None:
    """Return the name of a lock by task id; None if there is no id."""
    # Celery's own tasks (chord_unlock and others) take no lock.
    is_job = task.request.id and not task.name.startswith("celery.")
    return name_from_arguments.shortened(f"{task.name}[{task.request.id}]") if is_job else None


def name_for_rates(task: Any) -> str | None:
    """Return the name of a lock that no other call has: the acquire decides the rates with it.

    For a call that has rates and no lock. A direct call has no id, and its rates apply too.
    """
    if task.name.startswith("celery."):
        return None
    return name_by_id(task) or name_from_arguments.shortened(f"{task.name}[{new_token()}]")


def name_from_key(
    task: Any, key: Key | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    if key is None:
        return name_by_id(task)
    args, kwargs = dump_models(task, args, kwargs)
    if callable(key):
        return name_from_arguments.from_callable(key, args, kwargs)
    parameters = parameters_of(task)
    if key == BY_ARGUMENTS:
        return name_from_arguments.from_all(task.name, parameters.bound(args, kwargs))
    assert isinstance(key, str)
    return parameters.name(key, args, kwargs)
