"""Locks for tests without a server and a worker.

The store is the real one on fakeredis, which runs the same scripts as a server. Call tasks with
``task.apply()`` or with ``task_always_eager``. Differences from a worker:

- ``on_conflict="requeue"`` raises ``LockConflict``: there is no message to requeue.
- ``on_limit="delay"`` of a rate raises ``RateLimited``, for the same reason.
- The tasks of a chain run one by one and do not know the chain, so a skipped task passes its value
  on to the next.
- ``on_conflict="wait"`` without ``wait`` waits as long as ``hold_lock`` around it holds: for ever.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import celery
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import EagerResult, ResultBase

from celery_locks import settings
from celery_locks.core.lease import Lease
from celery_locks.core.locks import Locks
from celery_locks.errors import LockConflict, LockUsageError
from celery_locks.integration.app_locks import AppLocks, locks_of, replace_locks, unlocked_tasks
from celery_locks.integration.lock_name import lock_name
from celery_locks.integration.task import LockedTask
from celery_locks.options import combined
from celery_locks.types import Conflict, Holder, LockSpec, this_process

_MEMORY = "redis://in.this.process"


@contextmanager
def in_memory_locks(app: Any = None) -> Iterator[Locks]:
    """Keep the locks of the tasks of ``app`` (by default the current app) in memory.

    Each block starts with no lock held. It applies to tasks that run in this process, whatever
    server the app's settings name; ``Locks.from_app`` and ``from_url`` still use that server.
    """
    app = app or celery.current_app._get_current_object()
    locks = _make_locks(app)
    before = replace_locks(app, locks)
    try:
        yield locks
    finally:
        replace_locks(app, before)


def _make_locks(app: Any) -> AppLocks:
    values = _settings_of(app)
    locks = AppLocks(_make_client(), prefix=values.prefix)
    locks.settings = values
    return locks


def _settings_of(app: Any) -> settings.Settings:
    """Return the settings of an app that need not name a server."""
    return settings.of(SimpleNamespace(conf=ChainMap({"locks_url": _MEMORY}, app.conf)))


def _make_client() -> Any:
    try:
        import fakeredis
        import lupa  # noqa: F401 (fakeredis needs it to run scripts)
    except ImportError as error:
        raise LockUsageError(
            f"locks in memory need fakeredis with Lua, and {error.name} is not installed: "
            "pip install 'celery-locks[testing]'"
        ) from error
    return fakeredis.FakeRedis(server=fakeredis.FakeServer())


@contextmanager
def locks_disabled() -> Iterator[None]:
    """Run every locked task in this process without its lock: no conflict, no server, no settings.

    ``self.lock`` is then an object whose ``check()`` passes and whose fence is 0, and
    ``task.pending()`` is None.
    """
    with unlocked_tasks():
        yield


@contextmanager
def hold_lock(
    name: str, *, app: Any = None, limit: int = 1, slots: int | None = None
) -> Iterator[Lease]:
    """Hold the lock ``name`` as somebody else while the block runs; yield the lease.

    With a ``limit``, all slots are taken, or only ``slots`` of them.
    """
    LockSpec(name, limit=limit)
    slots = limit if slots is None else slots
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= limit:
        raise LockUsageError(
            f"slots is {slots!r}; it must be a whole number from 1 to the limit, {limit}"
        )
    locks = locks_of(app or celery.current_app._get_current_object())
    leases: list[Lease] = []
    try:
        for slot in range(slots):
            leases.append(_acquire(locks, name, limit, slot))
        yield leases[0]
    finally:
        for lease in leases:
            locks.release(lease)


def _acquire(locks: Locks, name: str, limit: int, slot: int) -> Lease:
    answer = locks.try_acquire(name, limit=limit, holder=_somebody_else(slot))
    if isinstance(answer, Conflict):
        raise LockConflict(answer)
    return answer


def _somebody_else(slot: int) -> Holder:
    here = this_process()
    return Holder(
        task_id=f"somebody-else-{slot}",
        task="somebody.else",
        worker="somebody@elsewhere",
        host=here.host,
        pid=here.pid,
    )


def lock_name_of(task: LockedTask[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the name of the lock that ``task`` takes when it is called with these arguments."""
    # Not task.lock_options(): in locks_disabled() it has no key.
    options = combined(_settings_of(task.app).task, task._lock_values)
    name = lock_name(task, options, args, kwargs)
    if name is None:
        if callable(options.key):
            raise LockUsageError(f"task {task.name} is not locked: its key function returned None")
        raise LockUsageError(f"task {task.name} is locked by its id, which is new for each call")
    return name


def assert_skipped(
    result: Any, *, lock: str | None = None, patience: float = 10.0
) -> dict[str, Any]:
    """Fail unless the task was skipped because its lock (``lock``, if given) was busy.

    ``result`` is what ``delay``, ``apply_async`` or ``apply`` returned, or a task's value. A result
    that a worker has yet to deliver is waited for, up to ``patience`` seconds. Returns the value of
    the skipped task.
    """
    __tracebackhide__ = True
    value = _value_of(result, patience)
    if not _is_skip(value):
        _fail(f"the task was not skipped: {_describe(value)}")
    if lock is not None and value["lock"] != lock:
        _fail(f"the task was skipped for lock {value['lock']!r}, not for {lock!r}")
    skip: dict[str, Any] = value
    return skip


def _value_of(result: Any, patience: float) -> Any:
    __tracebackhide__ = True
    if not isinstance(result, ResultBase):
        return result
    if isinstance(result, EagerResult):
        return result.result
    try:
        return result.get(timeout=patience, propagate=False, disable_sync_subtasks=False)
    except ResultTimeout:
        _fail(f"no result came within {patience:g} s; the task's state is {result.state}")


def _is_skip(value: Any) -> bool:
    return isinstance(value, dict) and value.get("skipped") is True and "lock" in value


def _describe(value: Any) -> str:
    if isinstance(value, LockConflict) or type(value).__name__ == "LockConflict":
        return (
            f"it failed with LockConflict, {value}. A skip needs on_conflict='skip'; a link "
            "of a chain, or a task with a callback, fails instead"
        )
    if isinstance(value, BaseException):
        return f"it failed with {value!r}"
    return f"it ran and returned {value!r}"


def _fail(sentence: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(sentence)
