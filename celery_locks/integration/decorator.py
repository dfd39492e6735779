"""The decorator single_instance, written below or above ``@app.task``.

Below, it marks the function; above, it gets the task. In both cases the task becomes a
:class:`LockedTask`, if necessary by adding that class to its own: when Celery binds the task to its
app, and at the latest when the function is about to run. A marked function that no task runs
raises, so that nothing ever runs silently unlocked.

More than 300 lines: a third is the signature and the help of the decorators.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

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
from celery_locks.rates import Key, OnLimit, RateRule, RateText
from celery_locks.validation import Wait

F = TypeVar("F", bound=Callable[..., Any])


@overload
def single_instance(target: F, /) -> F: ...
@overload
def single_instance(
    *,
    key: lock_options.Key = ...,
    ttl: float = ...,
    limit: lock_options.Limit = ...,
    shared: bool = ...,
    on_conflict: lock_options.OnConflict | lock_options.OnPublish | Mapping[str, str] = ...,
    wait: Wait = ...,
    on_retry: lock_options.OnRetry = ...,
    on_lost: lock_options.OnLost = ...,
    on_unavailable: lock_options.OnUnavailable = ...,
    scope: lock_options.Scope = ...,
    at_least: float = ...,
    enabled: bool = ...,
    max_queued: int = ...,
    max_parked: int = ...,
    fair_by: lock_options.Key = ...,
    by_priority: bool = ...,
    wake_queue: str = ...,
    on_join_failure: lock_options.OnJoinFailure = ...,
    cancel_grace: float = ...,
    max_displacements: int = ...,
    displace_after: float = ...,
    pending_ttl: float = ...,
    keep_message: bool = ...,
    debounce: float = ...,
    settle: float = ...,
    max_wait: float = ...,
    arguments: Literal["last", "first"] | lock_options.MergeArguments = ...,
    on_stop: lock_options.OnStop = ...,
    once: float = ...,
    once_failed: float = ...,
    reuse: Reuse = ...,
    rates: Any = ...,
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
    that returns the name, or None if this call needs no lock; or a list of these, to acquire
    several locks, all or none. ``ttl``: seconds that the lock outlives a process that dies; it is
    renewed while the task runs. ``limit``: how many may run at once; or a function of the call's
    arguments that returns it; or a list with a number for each key. An operator's limit wins.
    ``shared``: any number of runs with ``shared=True`` hold the lock at once, and nobody else.

    ``on_conflict``: what a run does that finds the lock busy: "skip" ends it with a result that
    says so, "raise" fails it with ``LockConflict``, "requeue" sends the message again later,
    "wait" waits in line, "park" waits on the lock server without a worker slot, "keep_latest" does
    so in place of the one that waits, "join" does not run but takes over the result of the run
    that holds the lock, "cancel_running" stops that run and takes its place. For calls
    that find another in the queue (with a queued ``scope``):
    "return_existing", "raise", "replace", "allow". For both: ``{"publish": …, "run": …}``, where
    "publish" may also be "skip" (return a result that says so) or "wait" (for room in the queue).
    With ``{"run": "wait", "then": "requeue"}`` the message is requeued after ``wait`` seconds in
    line, and waits as long each time it comes back; "then" is "raise", "requeue" or "skip".
    ``wait``: seconds of patience with "wait" and "requeue", or "forever"; alone it means
    ``on_conflict="wait"``.

    ``max_parked``: how many may wait for a lock before "park" fails. ``fair_by``: template or
    function; parked messages with different values take turns, such as "{tenant}".
    ``by_priority``: parked messages with a higher priority come first, as in the broker.
    ``wake_queue``: the queue of parked messages whose turn has come, instead of their own.
    ``on_join_failure``: if the run that was joined fails, "run" this one, or "propagate" the error.
    ``cancel_grace``: seconds that a run has to end before "cancel_running" terminates it.
    ``max_displacements``: how many runs in a row "cancel_running" may stop before one may finish.
    ``displace_after``: seconds that a run has before "cancel_running" asks it to stop.

    ``scope``: "running", "queued" (also unique in the queue, while it waits) or "queued+running"
    (one at a time from publish to end). ``pending_ttl``: seconds that a message which never starts
    keeps its reservation. ``keep_message``: keep the message on the lock server until it starts,
    and publish it again if the broker has lost it. ``max_queued``: how many may be queued, by
    default as many as ``limit``.
    ``max_parked``: with ``on_conflict="park"``, how many may wait for the lock on the lock server.
    ``debounce``: seconds after the first call in which later calls replace it. ``settle``: instead
    of ``debounce``, seconds after the last call until it runs. ``max_wait``: with ``settle``, the
    most seconds after the first call. ``arguments``: those that one run for several calls gets: of
    the "last" call, of the "first", or what a function ``merge(earlier, later)`` makes of two
    calls' arguments by name.

    ``once``: seconds for which done work is not done again; repeats get the saved result.
    ``once_failed``: with ``once``, seconds for which failed work is not repeated.
    ``reuse``: what may run again then: "failed_only", "never", "always".
    ``at_least``: seconds that the lock stays taken, counted from the start of the run.

    ``on_retry``: "release" or "keep" the lock until the next attempt. ``on_lost``: "raise"
    ``LeaseLost`` in the running task, or "warn" only. ``on_stop``: raise ``StopRequested`` in the
    task ("raise"), or leave it to ``self.lock.check()`` ("check"). ``on_unavailable``: without the
    lock server "requeue", "run" unlocked, or "fail". ``rates``: how often it may start, such as
    "30/m"; see ``rate_limited``. ``enabled``: False switches lock and rates off.

    Raises ``LockUsageError`` if an option is wrong or has no effect.
    """
    install()
    values = {"key": BY_ARGUMENTS, **lock_options.checked(options, "@single_instance")}
    if target is None:
        return lambda it: _apply(it, values)
    return _apply(target, values)


def limited(limit: int | Callable[..., int], /, **options: Any) -> Callable[[F], F]:
    """Run at most ``limit`` at once for each key: ``single_instance`` with a ``limit``.

        @app.task
        @limited(3, key="api:{tenant}", on_conflict="requeue")
        def call_api(tenant): ...

    ``limit`` may be a function of the call's arguments. The other options are those of
    ``single_instance``.
    """
    decorator: Callable[[F], F] = single_instance(limit=limit, **options)
    return decorator


def rate_limited(
    rate: RateText | Callable[..., RateText | None],
    /,
    *,
    key: Key | None = None,
    burst: int = 1,
    cost: float | Callable[..., float] = 1,
    on_limit: OnLimit = "delay",
) -> Callable[[F], F]:
    """Limit how often a task starts, over all workers; several of these limit it together.

        @app.task
        @rate_limited("30/m", key="api:{tenant}")
        @rate_limited("1000/h")
        def call_api(tenant): ...

    ``rate``: "30/m" allows 30 starts per minute (s, m, h or d), a tuple is several limits; or a
    function of the call's arguments that returns one of these, or None for a call that is not
    limited. ``key``: calls with the same key share the rate, as for ``single_instance``; by default
    all calls of the task. ``burst``: how many may start at once after a pause. ``cost``: how many
    starts one counts for, also as a function of the call's arguments.

    ``on_limit``: "delay" sends the message again, to a start that is reserved for it; "skip" ends
    the task with a result that says so; "raise" fails it with ``RateLimited``.

    The task becomes a ``LockedTask``; without ``@single_instance`` it is locked by its id. Raises
    ``LockUsageError`` if a parameter is wrong.
    """
    install()
    try:
        rule = RateRule(rate, key, burst, cost, on_limit).checked()
    except LockUsageError as error:
        raise LockUsageError(f"@rate_limited: {error}") from None
    return lambda target: _apply_rate(target, rule)


def _apply_rate(target: Any, rule: RateRule) -> Any:
    if is_lazy_task(target):
        when_evaluated(target, lambda task: _add_rate(task, rule))
    elif is_shared_task(target):
        raise LockUsageError("@rate_limited cannot stand above @shared_task; write it below")
    elif isinstance(target, Task):
        _add_rate(target, rule)
    elif not inspect.isfunction(target):
        raise LockUsageError(f"@rate_limited is for tasks and their functions, not {target!r}")
    elif hasattr(target, MARK):
        marked = getattr(target, MARK)
        marked["rates"] = (rule, *marked.get("rates", ()))
    else:
        return _mark(target, {"rates": (rule,)}, "@rate_limited")
    return target


def _add_rate(task: Any, rule: RateRule) -> None:
    cls = type(task)
    rates = (rule, *getattr(cls, "_lock_values", {}).get("rates", ()))
    make_locked(task, {})
    type(task)._lock_values = {**type(task)._lock_values, "rates": rates}
    type(task)._lock_own = {**type(task)._lock_own, "rates": rates}
    check_task(task, task.app)


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
    if "key" in getattr(task.run, MARK, {}) or "_lock_above" in vars(type(task)):
        raise _twice_error(f"task {task.name}")
    make_locked(task, options)
    type(task)._lock_above = True


def _twice_error(what: str) -> LockUsageError:
    return LockUsageError(
        f"{what} has @single_instance twice (@idempotent counts too); write all options in one"
    )


def _mark(function: Any, options: dict[str, Any], decorator: str = "@single_instance") -> Any:
    where, key = f"{decorator} of {function.__qualname__}", options.get("key")
    refuse_coroutine(function, where)
    marked = getattr(function, MARK, {})
    if "key" in marked:
        raise _twice_error(function.__qualname__)
    for template in key if lock_options.is_several(key) else [key]:
        if isinstance(template, str) and template != BY_ARGUMENTS:
            name_from_arguments.Parameters(function, task=function.__name__).check(template, where)
    if marked:  # by @rate_limited
        marked.update({**options, **marked})
        return function

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
            f"{locked.__qualname__} is marked with @single_instance or @rate_limited but is no "
            "task, so nothing would lock it; put @app.task above it, or use Locks.hold"
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
    type(task)._lock_values = lock_options.merged(options, type(task)._lock_values)
    type(task)._lock_own = lock_options.merged(options, type(task)._lock_own)
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
