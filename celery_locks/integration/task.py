"""LockedTask: a Celery task that takes its lock before it runs and gives it back when it ends."""

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
from celery_locks.integration import app as apps
from celery_locks.integration import signals as hooks
from celery_locks.integration.app import locks_of
from celery_locks.integration.execution import (
    Execution,
    current_execution,
    current_lease,
)
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.naming import lock_name, parameters_of
from celery_locks.integration.publishing import as_sent, pending, publish
from celery_locks.integration.reservation import release_reservation_of
from celery_locks.integration.task_checks import (
    ATTRIBUTES,
    MISPLACED,
    check_task,
    refuse_coroutine,
    refuse_misplaced,
    refuse_unprefixed,
)
from celery_locks.options import LockOptions

MARK = "__celery_locks__"
_UNLOCKED = LockOptions(enabled=False)

if TYPE_CHECKING:
    from celery.result import AsyncResult, EagerResult
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)

    class _TypedTask(Task[P, R_co], Generic[P, R_co]):  # type: ignore[misc]
        """A task as the stubs of celery-types have it."""

else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)

    class _TypedTask(Task):
        """Celery before 5.7 cannot be subscripted, and no Celery takes an alias as ``base``."""

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
    ``apply_async(lock={"ttl": 60})`` says them for one call. Without a key the lock is per task id:
    this very message never runs twice at once.

    ``self.lock`` is the lease, ``pending(…)`` tells whether a call is queued or running,
    ``lock_name(…)`` its lock's name. A wrong option raises ``LockUsageError`` when the task is
    made; a run raises as its options say (``on_conflict``, ``on_lost``, ``on_unavailable``).

    For type checkers it has parameters, ``LockedTask[[int, str], None]``, also as ``base``.
    """

    abstract = True
    Request = "celery_locks.integration.request:LockRequest"

    _lock_values: Mapping[str, Any] = {}
    _lock_own: Mapping[str, Any] = {}  # what of it is written on this very class or its function
    _lock_cached: tuple[Any, LockOptions] | None = None
    _lock_is_around_call = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        where = f"task {cls.__name__}"
        said = {word: vars(cls)[name] for name, word in ATTRIBUTES.items() if name in vars(cls)}
        unknown = [
            n for n in vars(cls) if n.startswith("lock_") and n not in ATTRIBUTES and n not in _OWN
        ]
        for name in unknown:
            lock_options.checked({name.removeprefix("lock_"): None}, where)
        refuse_unprefixed(vars(cls), where)
        cls._lock_is_around_call = super().__call__ is not Task.__call__
        if isinstance(said.get("key"), staticmethod):
            said["key"] = said["key"].__func__
        run = vars(cls).get("run")  # Celery makes it a staticmethod, unless the task is bound
        run = getattr(run, "__func__", run)
        if said.get("enabled", True):
            refuse_coroutine(run, where)
        cls._lock_own = {**getattr(run, MARK, {}), **lock_options.checked(said, where)}
        cls._lock_values = {**cls._lock_values, **cls._lock_own}

    @classmethod
    def bind(cls, app: Any) -> Any:
        bound = super().bind(app)
        hooks.connect()
        cls._lock_watch_start()
        if cls._lock_values:
            check_task(app._tasks.get(cls.name) or cls(), app)
        return bound

    @classmethod
    def _lock_watch_start(cls) -> None:
        """Where code of the user's may fail before the lock is asked for, a place is owed then.

        There only: with a receiver every task of the process would be slower, locked or not.
        """
        if cls.before_start != Task.before_start or cls.__call__ != LockedTask.__call__:
            signals.task_postrun.connect(_when_a_task_has_ended)

    def lock_options(self, call_options: Mapping[str, Any] | None = None) -> LockOptions:
        """Settings, then the task, then the call."""
        if apps.unlocked_by:
            return _UNLOCKED
        defaults = locks_of(self.app).settings.task
        if call_options:
            return lock_options.combined(defaults, self._lock_values, call_options)
        made_from = (defaults, self._lock_values)
        if self._lock_cached is None or self._lock_cached[0] != made_from:
            self._lock_cached = (made_from, lock_options.combined(*made_from))
        return self._lock_cached[1]

    @property
    def lock(self) -> Lease | NullLease:
        """The lease this execution holds; where it runs unlocked, one whose check() passes."""
        return current_lease() or NullLease()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        request = self.request
        # Set where this very task runs already and its body calls it directly.
        running = getattr(request, "celery_locks_execution", None)
        if request.called_directly or running:
            return self._call_directly(args, kwargs, running)
        return self._run(Execution(self, request, args, kwargs))

    def _call_directly(self, args: Any, kwargs: Any, within: Execution | None) -> R_co:
        self.push_request(args=args, kwargs=kwargs)
        try:
            return self._run(Execution(self, self.request, args, kwargs, within))
        finally:
            self.pop_request()

    def _run(self, execution: Execution) -> R_co:
        execution.request.celery_locks_execution = execution
        # What comes next: a ``__call__`` of the user's own base, or ``run``.
        body = super().__call__ if self._lock_is_around_call else self.run
        try:
            result: R_co = execution.run(body)
            return result
        except Retry:
            execution.owns_reservation = False  # it is the next attempt's
            raise
        finally:
            if execution.owns_reservation:
                execution.release_reservation()
            execution.forget_request()

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        lock: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[R_co]:
        """As Celery's; ``lock`` overrides the lock's options for this call.

        With a queued scope the result's ``deduplicated`` tells whether it is that of another call.
        """
        if positional:
            options = dict(zip(_POSITIONAL, positional, strict=False)) | options
        if not MISPLACED.isdisjoint(options):
            refuse_misplaced(self, options)
        if lock is not None:
            options = _with_lock(self, lock, options)
        said = self.lock_options(LockHeader.read(options.get("headers")).options)
        send = super().apply_async
        if said.scope == "running":
            result: AsyncResult[R_co] = as_sent(send(args, kwargs, **options))
            return result
        return publish(self, said, args, kwargs, options, lambda final: send(args, kwargs, **final))

    def pending(self, *args: Any, **kwargs: Any) -> Literal["queued", "running"] | None:
        """Whether a call with these arguments is queued or running; nothing is published."""
        return pending(self, self.lock_options(), args, kwargs)

    def lock_name(self, *args: Any, **kwargs: Any) -> str | None:
        """The name of the lock for a call with these arguments, as ``Locks.hold`` takes it.

        None for a task that is locked by its id.
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
            options = _with_lock(self, lock, options)
        return super().apply(args, kwargs, *positional, **options)

    def on_replace(self, sig: Any) -> Any:
        """Count the replacement down to the link that keeps our id; Celery does so at the top only.

        Else it would be taken for a copy of the message that it replaces.
        """
        nesting = (self.request.replaced_task_nesting or 0) + 1
        link = sig
        while link := _last_link(link):
            link["options"] = {**(link.get("options") or {}), "replaced_task_nesting": nesting}
        return super().on_replace(sig)

    def after_return(self, *outcome: Any) -> None:
        """Give back whatever is still held; in the worker's main process that is nothing.

        A time limit may have struck on the way to the run's own ``try``, or within its ``finally``.
        """
        execution = self.request.get("celery_locks_execution")
        if execution is None:
            release_reservation_of(self.request, self.app)
        else:
            execution.release()
            if execution.owns_reservation:
                execution.release_reservation()
        super().after_return(*outcome)


def _when_a_task_has_ended(task: Any = None, state: str | None = None, **_: Any) -> None:
    """If the run never came to where it takes its lock, what its message holds is free."""
    request = task.request
    began = request.get("celery_locks_execution") is not None
    if isinstance(task, LockedTask) and not began and state != RETRY:
        release_reservation_of(request, task.app)


def _last_link(sig: Mapping[str, Any]) -> Any:
    """Of a chain or a chord the part that ends it; None of anything else."""
    parts = sig.get("kwargs") or {}
    if sig.get("subtask_type") == "chord":
        return parts.get("body")
    return (parts.get("tasks") or [None])[-1] if sig.get("subtask_type") == "chain" else None


_OWN = {"lock_options", "lock_name", "lock"}
# The parameters of Celery's apply_async after args and kwargs, for those who pass them in order.
_POSITIONAL = ("task_id", "producer", "link", "link_error", "shadow")


def _with_lock(task: Any, lock: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    headers = options.get("headers")
    header = replace(LockHeader.read(headers), options=_checked_for_call(task, lock))
    return {**options, "headers": header.write(headers)}


def _checked_for_call(task: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one call, which travel in a header and so must be plain."""
    where = f"task {task.name}: apply_async(lock=…)"
    words = lock_options.checked(said, where)
    key = words.get("key")
    if callable(key):
        raise LockUsageError(f"{where}: a key for one call must be a text")
    if key is not None:
        parameters_of(task).check(key, where)
    lock_options.refuse_idle(words, task.lock_options(words), where)
    return words


__all__ = ["LockedTask", "current_execution", "current_lease"]
