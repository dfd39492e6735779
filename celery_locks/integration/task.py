"""LockedTask: a Celery task that acquires its lock before it runs and releases it when it ends.

More than 300 lines: a user reads the class from its help, so its parts are not spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal

from celery import Task, signals
from celery.exceptions import Retry
from celery.states import RETRY

from celery_locks import options as lock_options
from celery_locks import settings
from celery_locks.core.lease import Lease
from celery_locks.core.null_lease import NullLease
from celery_locks.errors import LockUsageError
from celery_locks.integration import app_locks as apps
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.current_execution import current_execution, current_lease
from celery_locks.integration.execution import Execution
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.hold_in_task import EndRun
from celery_locks.integration.internals import registered_task
from celery_locks.integration.lock_name import lock_name, parameters_of
from celery_locks.integration.publishing import publish_call
from celery_locks.integration.reservation import Reservation
from celery_locks.integration.signals import install
from celery_locks.integration.task_checks import (
    ATTRIBUTES,
    MISPLACED,
    check_fair_by,
    check_rates,
    check_task,
    refuse_coroutine,
    refuse_misplaced,
    refuse_unprefixed,
)
from celery_locks.options import LockOptions
from celery_locks.types import Holder

MARK = "__celery_locks__"
UNLOCKED = LockOptions(enabled=False)

if TYPE_CHECKING:
    from celery.result import AsyncResult, EagerResult
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)

    class _TypedTask(Task[P, R_co], Generic[P, R_co]):  # type: ignore[misc]
        """A task as in the stubs of celery-types."""

else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)

    class _TypedTask(Task):
        """Celery before 5.7 cannot be subscripted, and no Celery accepts an alias as ``base``."""

        abstract = True

        def __class_getitem__(cls, types: Any) -> Any:
            return cls


class LockedTask(_TypedTask[P, R_co]):
    """A task that holds a lock while it runs.

        @app.task(base=LockedTask, bind=True, lock_key="invoice:{number}", lock_ttl=30)
        def bill(self, number):
            write(number, fence=self.lock.fence)

    Use it as ``base=LockedTask``, as the base of a class of your own, or for all tasks of an app:
    ``Celery(task_cls="celery_locks:LockedTask")``. The options are those of ``single_instance``
    with ``lock_`` before them, as options of ``@app.task`` or in the class body;
    ``apply_async(lock={"ttl": 60})`` sets them for one call. Without a key the lock is per task id:
    the same message never runs twice at once.

    ``self.lock`` is the lease, ``pending(…)`` tells whether a call is queued or running,
    ``lock_name(…)`` returns its lock's name. A wrong option raises ``LockUsageError`` when the task
    is made; a run raises as its options say (``on_conflict``, ``on_lost``, ``on_unavailable``).

    For type checkers it has parameters, ``LockedTask[[int, str], None]``, also as ``base``.
    """

    abstract = True
    Request = "celery_locks.integration.request:LockRequest"

    _lock_values: Mapping[str, Any] = {}
    _lock_own: Mapping[str, Any] = {}  # those written on this class itself or on its function
    _lock_cached: tuple[Any, LockOptions] | None = None
    _lock_wraps_call = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        install()
        where = f"task {cls.__name__}"
        options = {
            option: vars(cls)[name] for name, option in ATTRIBUTES.items() if name in vars(cls)
        }
        unknown = [
            n for n in vars(cls) if n.startswith("lock_") and n not in ATTRIBUTES and n not in _OWN
        ]
        for name in unknown:
            lock_options.checked({name.removeprefix("lock_"): None}, where)
        refuse_unprefixed(vars(cls), where)
        cls._lock_wraps_call = super().__call__ is not Task.__call__
        for option in ("key", "limit"):
            if isinstance(options.get(option), staticmethod):
                options[option] = options[option].__func__
        run = vars(cls).get("run")  # Celery makes it a staticmethod, unless the task is bound
        run = getattr(run, "__func__", run)
        if options.get("enabled", True):
            refuse_coroutine(run, where)
        own = lock_options.checked(options, where)
        cls._lock_own = lock_options.merged(getattr(run, MARK, {}), own)
        cls._lock_values = lock_options.merged(cls._lock_values, cls._lock_own)

    @classmethod
    def bind(cls, app: Any) -> Any:
        bound = super().bind(app)
        cls._lock_watch_start()
        if cls._lock_values:
            check_task(registered_task(app, cls.name) or cls(), app)
        return bound

    @classmethod
    def _lock_watch_start(cls) -> None:
        """Release the reservation if user code fails before the lock is acquired.

        Connected only for such tasks: a receiver slows down every task of the process.
        """
        if cls.before_start != Task.before_start or cls.__call__ != LockedTask.__call__:
            signals.task_postrun.connect(_release_if_never_began)

    def lock_options(self, call_options: Mapping[str, Any] | None = None) -> LockOptions:
        """Combine the options of the settings, the task and the call; the later ones win."""
        if apps.unlocked_blocks:
            return UNLOCKED
        defaults = locks_of(self.app).settings.task
        if call_options:
            return lock_options.combined(defaults, self._lock_values, call_options)
        made_from = (defaults, self._lock_values)
        if self._lock_cached is None or self._lock_cached[0] != made_from:
            self._lock_cached = (made_from, lock_options.combined(*made_from))
        return self._lock_cached[1]

    @property
    def lock(self) -> Lease | NullLease:
        """The lease of this execution; if it runs unlocked, one whose check() passes."""
        return current_lease() or NullLease()

    @property
    def locks(self) -> AppLocks:
        """The locks of the app. In the body, ``hold`` may end the run if others hold the lock.

        with self.locks.hold("repository:7", on_conflict="requeue"): ...
        """
        return locks_of(self.app)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        request = self.request
        # Set if this task runs already and its body calls it directly.
        outer = getattr(request, "celery_locks_execution", None)
        if request.called_directly or outer:
            return self._call_directly(args, kwargs, outer)
        return self._run(Execution(self, request, args, kwargs))

    def _call_directly(self, args: Any, kwargs: Any, outer: Execution | None) -> R_co:
        self.push_request(args=args, kwargs=kwargs)
        try:
            return self._run(Execution(self, self.request, args, kwargs, outer))
        finally:
            self.pop_request()

    def _run(self, execution: Execution) -> R_co:
        execution.request.celery_locks_execution = execution
        # The next in line: a ``__call__`` of the user's own base, or ``run``.
        body = super().__call__ if self._lock_wraps_call else self.run
        try:
            result: R_co = execution.run(body)
            return result
        except Retry:
            execution.reservation.pass_on()  # to the next attempt
            raise
        except EndRun as end:
            ended: R_co = execution.on_end_run(end)
            return ended
        finally:
            execution.reservation.release()
            execution.forget_request()

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        lock: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[R_co]:
        """Publish as Celery does; ``lock`` overrides the lock's options for this call.

        With a queued scope ``result.deduplicated`` tells whether it is the result of another call.
        """
        if positional:
            options = dict(zip(_POSITIONAL, positional, strict=False)) | options
        if not MISPLACED.isdisjoint(options):
            refuse_misplaced(self, options)
        if lock is not None:
            options = with_lock(self, lock, options)
        if execution := current_execution():
            options = with_publisher(execution, options)
        send = super().apply_async

        def send_call(final: dict[str, Any], call: Any = (args, kwargs)) -> Any:
            return send(*call, **final)

        result: AsyncResult[R_co] = publish_call(self, args, kwargs, options, send_call)
        return result

    def pending(self, *args: Any, **kwargs: Any) -> Literal["queued", "running"] | None:
        """Tell whether a call with these arguments is queued or running; publishes nothing."""
        options = self.lock_options()
        name = lock_name(self, options, args, kwargs) if options.enabled else None
        return locks_of(self.app).find_call(name, options.scope) if name else None

    def lock_name(self, *args: Any, **kwargs: Any) -> str | None:
        """Return the lock name for a call with these arguments, as ``Locks.hold`` takes it.

        None for a task that is locked by its id, and for a call that is not locked because the key
        function returns None.
        """
        options = lock_options.combined(settings.task_options(self.app), self._lock_values)
        return lock_name(self, options, args, kwargs)

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        lock: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> EagerResult[R_co]:
        if not MISPLACED.isdisjoint(options):
            refuse_misplaced(self, options)
        if lock is not None:
            options = with_lock(self, lock, options)
        return super().apply(args, kwargs, *positional, **options)

    def on_replace(self, sig: Any) -> Any:
        """Count the replacement also in the link that keeps our id; Celery counts only at the top.

        Otherwise it would be taken for a copy of the message that it replaces.
        """
        nesting = (self.request.replaced_task_nesting or 0) + 1
        execution, link = current_execution(), sig
        while link := _last_link(link):
            options = {**(link.get("options") or {}), "replaced_task_nesting": nesting}
            # Another run publishes this link, so the fences are added now.
            own = {**options, "task_id": self.request.id}
            headers = with_publisher(execution, own).get("headers") if execution else None
            link["options"] = {**options, **({"headers": headers} if headers else {})}
        return super().on_replace(sig)

    def after_return(self, *outcome: Any) -> None:
        """Release whatever is still held; in the worker's main process that is nothing.

        A time limit may interrupt before the ``try`` of the run, or within its ``finally``.
        """
        execution = self.request.get("celery_locks_execution")
        if execution is None:
            Reservation.of(self.request, self.app).release()
        else:
            execution.release()
            execution.reservation.release()
        super().after_return(*outcome)


def _release_if_never_began(task: Any = None, state: str | None = None, **_: Any) -> None:
    """Release the reservation of a message whose run ended before it could acquire its lock."""
    request = task.request
    began = request.get("celery_locks_execution") is not None
    if isinstance(task, LockedTask) and not began and state != RETRY:
        Reservation.of(request, task.app).release()


def _last_link(sig: Mapping[str, Any]) -> Any:
    """Return the last part of a chain or a chord; None for anything else."""
    parts = sig.get("kwargs") or {}
    if sig.get("subtask_type") == "chord":
        return parts.get("body")
    return (parts.get("tasks") or [None])[-1] if sig.get("subtask_type") == "chain" else None


_OWN = {"lock_options", "lock_name", "lock"}
# The parameters of Celery's apply_async after args and kwargs, if they are passed by position.
_POSITIONAL = ("task_id", "producer", "link", "link_error", "shadow")


def with_lock(
    task: Any, lock: Mapping[str, Any], options: dict[str, Any], call: str = "apply_async"
) -> dict[str, Any]:
    """Return the options of a call with a header that has its lock options."""
    headers = options.get("headers")
    header = replace(LockHeader.read(headers), options=_checked_for_call(task, lock, call))
    return {**options, "headers": header.write(headers)}


def with_publisher(execution: Execution, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call with a header that names the run which publishes it.

    Only for the next attempt of the same job, a retry or a replacement: it takes the lock over from
    that run and from no other.
    """
    task_id = options.get("task_id")
    retries, replaced = options.get("retries") or 0, options.get("replaced_task_nesting") or 0
    attempt = Holder(retries=retries, replaced=replaced).attempt
    fences = execution.fences_for(task_id, attempt) if task_id else ()
    if not fences:
        return options
    headers = options.get("headers")
    header = replace(LockHeader.read(headers), published_by=fences)
    return {**options, "headers": header.write(headers)}


def _checked_for_call(task: Any, options: Mapping[str, Any], call: str) -> dict[str, Any]:
    """Check the options of one call; they travel in a header, so they must be plain values."""
    where = f"task {task.name}: {call}(lock=…)"
    values = lock_options.checked(options, where)
    key = values.get("key")
    templates: Any = key if lock_options.is_several(key) else [key]
    if any(map(callable, templates)):
        raise LockUsageError(f"{where}: a key for one call must be a text")
    if callable(values.get("limit")):
        raise LockUsageError(f"{where}: a limit for one call must be a number")
    if callable(values.get("arguments")):
        raise LockUsageError(f"{where}: arguments for one call must be 'last' or 'first'")
    for template in templates if key is not None else ():
        parameters_of(task).check(template, where)
    if callable(values.get("fair_by")):
        raise LockUsageError(f"{where}: fair_by for one call must be a text")
    check_fair_by(task, values.get("fair_by"), where)
    rules = values.get("rates", ())
    if any(callable(part) for rule in rules for part in rule):
        raise LockUsageError(f"{where}: the rates of one call must have no functions")
    check_rates(task, rules, where)
    lock_options.refuse_idle(values, task.lock_options(values), where)
    return values


__all__ = ["LockedTask", "current_execution", "current_lease"]
