"""Publish by name: ``send_task`` for tasks that this process may not know, and ``app.send_task``.

A process that does not know a task has neither its parameters nor its options. So the call says the
lock, and the publisher writes the finished name into the header: the worker uses that name,
whatever the key of its task is. The other options of the call override those of the task there, as
those of ``apply_async(lock=…)`` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_locks import options as lock_options
from celery_locks.errors import LockUsageError
from celery_locks.integration import app_locks as apps
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.internals import find_task
from celery_locks.integration.lock_name import BY_ARGUMENTS
from celery_locks.integration.publishing import Send, is_being_sent, publish_call
from celery_locks.integration.task import UNLOCKED, LockedTask, with_lock
from celery_locks.integration.task_checks import MISPLACED, refuse_misplaced
from celery_locks.key_template import TASK, parsed
from celery_locks.options import LockOptions

if TYPE_CHECKING:
    from celery.result import AsyncResult


def send_task(
    app: Any,
    name: str,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    lock: Mapping[str, Any],
    **options: Any,
) -> AsyncResult[Any]:
    """Publish a task by its name, as ``app.send_task`` does, under the lock of this call.

        lock = {"key": "doc:{doc}", "scope": "queued"}
        send_task(app, "shop.index", kwargs={"doc": 7}, lock=lock)

    ``lock`` has the options of ``single_instance``; with a queued ``scope`` the reservation is
    taken here. They travel with the message and override those of the task, which must be a
    ``LockedTask`` in the worker. If this process does not know the task, its key is a text or a
    template over ``kwargs``.

    ``result.deduplicated`` tells whether it is the result of another call. Raises
    ``AlreadyQueued`` and ``LockUnavailable`` as ``apply_async`` does, and ``LockUsageError`` for a
    wrong option.
    """
    task = find_task(app, name) or UnknownTask(app, name)
    if not MISPLACED.isdisjoint(options):
        refuse_misplaced(task, options)
    if not isinstance(lock, Mapping):
        raise LockUsageError(
            f"task {name}: send_task(lock=…) is {lock!r}; write the options of the lock, such as "
            "{'key': 'doc:7', 'scope': 'queued'}, or use app.send_task"
        )
    kwargs = kwargs or {}
    if isinstance(task, UnknownTask):
        options = task.with_lock(lock, kwargs, options)
    elif isinstance(task, LockedTask):
        options = with_lock(task, lock, options, "send_task")
    else:
        raise LockUsageError(
            f"task {name}: this process knows the task, and it takes no lock; make it a "
            "LockedTask, or publish it with app.send_task"
        )

    def send(final: dict[str, Any], call: Any = (args, kwargs)) -> Any:
        return app.send_task(name, *call, **final)

    return publish_call(task, args, kwargs, options, send)


def publish_by_name(
    app: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any], send: Send
) -> Any:
    """Publish for ``app.send_task``: with a reservation, if this process knows that it takes one.

    Not if the message has been through ``publish`` already: ``send_task`` above, or an
    ``apply_async`` of the user's own, calls ``app.send_task`` then.
    """
    task = find_task(app, name)
    if not isinstance(task, LockedTask) or is_being_sent(options.get("task_id")):
        return send(options)
    if "lock" in options:
        raise LockUsageError(
            f"task {name}: lock is no option of app.send_task, so it would have no effect; write "
            "celery_locks.send_task(app, name, …, lock=…)"
        )
    if not MISPLACED.isdisjoint(options):
        refuse_misplaced(task, options)
    return publish_call(task, args, kwargs, options, send)


class UnknownTask:
    """A task that other processes have: what ``publish`` needs to know of it."""

    expires = None
    ignore_result = False
    typing = False

    def __init__(self, app: Any, name: str) -> None:
        self.app = app
        self.name = name
        self.AsyncResult = app.AsyncResult

    @property
    def backend(self) -> Any:
        return self.app.backend

    @staticmethod
    def run(*args: Any, **kwargs: Any) -> None:
        """Take any arguments: the name of the lock needs none of them."""

    def lock_options(self, call_options: Mapping[str, Any]) -> LockOptions:
        """Combine the options of the settings and the call."""
        if apps.unlocked_blocks:
            return UNLOCKED
        return lock_options.combined(locks_of(self.app).settings.task, call_options)

    def with_lock(
        self, lock: Mapping[str, Any], kwargs: Mapping[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options of the call with a header that has the lock's options and its name."""
        where = f"task {self.name}: send_task(lock=…)"
        values = lock_options.checked(lock, where)
        if callable(values.get("limit")):
            raise LockUsageError(f"{where}: a limit for one call must be a number")
        if any(callable(part) for rule in values.get("rates", ()) for part in rule):
            raise LockUsageError(f"{where}: the rates of one call must have no functions")
        if values.get("key") is not None:
            try:
                values["key"] = _as_template(self._name(values["key"], kwargs))
            except LockUsageError as error:
                raise LockUsageError(f"{where}: {error}") from None
        if values.get("arguments", "last") != "last":
            raise LockUsageError(
                f"{where}: this process does not know the task's parameters, so its calls cannot "
                "be merged; leave arguments out"
            )
        combined = self.lock_options(values)
        lock_options.refuse_idle(values, combined, where)
        if combined.scope == "queued+running" and not callable(combined.limit):
            values["limit"] = combined.limit  # the run takes over a lock that has this limit
        headers = options.get("headers")
        header = replace(LockHeader.read(headers), options=values)
        return {**options, "headers": header.write(headers)}

    def _name(self, key: Any, kwargs: Mapping[str, Any]) -> str:
        if not isinstance(key, str) or key == BY_ARGUMENTS:
            raise LockUsageError(
                "this process does not know the task, so its key must be a text such as 'doc:7', "
                "or a template over kwargs such as 'doc:{doc}'"
            )
        template = parsed(key, None if TASK in kwargs else self.name)
        for field in template.fields:
            if field.parameter not in kwargs:
                raise LockUsageError(
                    f"the lock key {key!r} names {field.parameter!r}; this process does not know "
                    "the task's parameters, so pass it in kwargs, or write its value into the key"
                )
        template.check(tuple(kwargs), takes_any_keyword=False, knows_task=TASK not in kwargs)
        return template.fill(kwargs)


def _as_template(name: str) -> str:
    """Return the template that gives this name, whatever the arguments are."""
    return name.replace("{", "{{").replace("}", "}}")
