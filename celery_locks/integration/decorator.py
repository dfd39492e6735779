"""The decorator single_instance, written below or above ``@app.task``.

Below, it marks the function; above, it gets the task. In both cases the task becomes a
:class:`LockedTask`, if necessary by adding that class to its own: when Celery binds the task to its
app, and at the latest when the function is about to run. A marked function that no task runs
raises, so that nothing ever runs silently unlocked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from celery import Task

from celery_locks import name_from_arguments
from celery_locks import options as lock_options
from celery_locks.errors import LockUsageError
from celery_locks.help_signatures import shows_options
from celery_locks.integration.current_execution import current_execution
from celery_locks.integration.internals import (
    is_lazy_task,
    is_shared_task,
    rebuild_trace,
    registered_task,
    running_task,
    when_evaluated,
)
from celery_locks.integration.lock_name import BY_ARGUMENTS
from celery_locks.integration.signals import install
from celery_locks.integration.task import MARK, LockedTask
from celery_locks.integration.task_checks import check_task, refuse_coroutine, refuse_unprefixed
from celery_locks.options import Reuse
from celery_locks.validation import Wait

F = TypeVar("F", bound=Callable[..., Any])


@overload
def single_instance(target: F, /) -> F: ...
@overload
def single_instance(
    *,
    key: lock_options.Key = ...,
    ttl: float = ...,
    limit: int = ...,
    on_conflict: lock_options.OnConflict | lock_options.OnPublish | Mapping[str, str] = ...,
    wait: Wait = ...,
    on_retry: lock_options.OnRetry = ...,
    on_lost: lock_options.OnLost = ...,
    on_unavailable: lock_options.OnUnavailable = ...,
    scope: lock_options.Scope = ...,
    at_least: float = ...,
    enabled: bool = ...,
    pending_ttl: float = ...,
    debounce: float = ...,
    on_stop: lock_options.OnStop = ...,
    once: float = ...,
    reuse: Reuse = ...,
) -> Callable[[F], F]: ...
@shows_options(lock_options.DEFAULTS, lock_options.LockOptions.__annotations__)
def single_instance(target: Any = None, /, **options: Any) -> Any:
    """Run a task once at a time for each key; without a key, for each set of arguments.

        @app.task
        @single_instance(key="invoice:{number}", on_conflict="requeue")
        def bill(number): ...

    Write it below ``@app.task`` or ``@shared_task``, or above ``@app.task``. The app's settings
    ``locks_ttl``, ``locks_wait``, … are the defaults of the options.

    ``key``: template over the parameters, and ``{task}``; or a function of the call's arguments
    that returns the name. ``ttl``: seconds that the lock outlives a process that dies; it is
    renewed while the task runs. ``limit``: how many may run at once.

    ``on_conflict``: what a run does that finds the lock busy: "skip" ends it with a result that
    says so, "raise" fails it with ``LockConflict``, "requeue" sends the message again later,
    "wait" waits in line. For calls that find another in the queue (with a queued ``scope``):
    "return_existing", "raise", "replace", "allow". For both: ``{"publish": …, "run": …}``.
    ``wait``: seconds of patience with "wait" and "requeue", or "forever"; alone it means
    ``on_conflict="wait"``.

    ``scope``: "running", "queued" (also unique in the queue, while it waits) or "queued+running"
    (one at a time from publish to end). ``pending_ttl``: seconds that a message which never starts
    keeps its reservation. ``debounce``: seconds after the first call in which later calls replace
    it.

    ``once``: seconds for which done work is not done again; repeats get the saved result.
    ``reuse``: what may run again then: "failed_only", "never", "always".
    ``at_least``: seconds that the lock stays taken, counted from the start of the run.

    ``on_retry``: "release" or "keep" the lock until the next attempt. ``on_lost``: "raise"
    ``LeaseLost`` in the running task, or "warn" only. ``on_stop``: raise ``StopRequested`` in the
    task ("raise"), or leave it to ``self.lock.check()`` ("check"). ``on_unavailable``: without the
    lock server "requeue", "run" unlocked, or "fail". ``enabled``: False switches the lock off.

    Raises ``LockUsageError`` if an option is wrong or has no effect.
    """
    install()
    values = {"key": BY_ARGUMENTS, **lock_options.checked(options, "@single_instance")}
    if target is None:
        return lambda it: _apply(it, values)
    return _apply(target, values)


def _apply(target: Any, options: dict[str, Any]) -> Any:
    if is_lazy_task(target):
        when_evaluated(target, lambda task: _lock_above(task, options))
        return target
    if is_shared_task(target):
        raise LockUsageError("@single_instance cannot stand above @shared_task; write it below")
    if isinstance(target, Task):
        _lock_above(target, options)
        return target
    if isinstance(target, str):
        raise LockUsageError(
            f"@single_instance takes its options by name; write @single_instance(key={target!r})"
        )
    if not inspect.isfunction(target):
        raise LockUsageError(f"@single_instance is for tasks and their functions, not {target!r}")
    return _mark(target, options)


def _lock_above(task: Any, options: dict[str, Any]) -> None:
    if hasattr(task.run, MARK) or "_lock_above" in vars(type(task)):
        raise _twice_error(f"task {task.name}")
    make_locked(task, options)
    type(task)._lock_above = True


def _twice_error(what: str) -> LockUsageError:
    return LockUsageError(
        f"{what} has @single_instance twice (@idempotent counts too); write all options in one"
    )


def _mark(function: Any, options: dict[str, Any]) -> Any:
    where, key = f"@single_instance of {function.__qualname__}", options["key"]
    refuse_coroutine(function, where)
    if hasattr(function, MARK):
        raise _twice_error(function.__qualname__)
    if isinstance(key, str) and key != BY_ARGUMENTS:
        name_from_arguments.Parameters(function, task=function.__name__).check(key, where)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        execution = current_execution()
        if execution and getattr(execution.task.run, MARK, None) is options:
            return function(*args, **kwargs)
        return _lock_and_run(locked, options, args, kwargs)

    # Celery reads the parameters from the function itself, not through __wrapped__.
    locked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    setattr(locked, MARK, options)
    return locked


def _lock_and_run(locked: Any, options: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """Lock a task that was put into the registry by hand and never bound, and run it."""
    task = running_task()
    if task is None or getattr(task.run, MARK, None) is not options:
        raise LockUsageError(
            f"{locked.__qualname__} is marked with @single_instance but is no task, so nothing "
            "would lock it; put @app.task above it, or use Locks.hold"
        )
    make_locked(task, options)
    if args and args[0] is task:
        args = args[1:]
    return task(*args, **kwargs)


def make_locked(task: Any, options: dict[str, Any]) -> None:
    """Turn a task into a LockedTask, in place; if it is one already, only set its options."""
    if not isinstance(task, LockedTask):
        cls = type(task)
        refuse_unprefixed(vars(cls), f"task {task.name}")
        body = {"__module__": cls.__module__, **_lock_attributes(cls)}
        task.__class__ = type(cls.__name__, (LockedTask, cls), body)
        type(task)._lock_watch_start()
        rebuild_trace(task)
    type(task)._lock_values = {**options, **type(task)._lock_values}
    type(task)._lock_own = {**options, **type(task)._lock_own}
    check_task(task, task.app)


def _lock_attributes(cls: Any) -> dict[str, Any]:
    """Collect the ``lock_…`` attributes of a plain task class and its bases."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if name.startswith("lock_")
    }


def lock_if_marked(cls: Any, app: Any) -> None:
    """Lock a marked task when Celery binds it to an app, before anybody can publish it."""
    task = registered_task(app, cls.name)
    options = getattr(cls.run, MARK, None)
    if options is not None and type(task) is cls and not isinstance(task, LockedTask):
        make_locked(task, options)
