"""For the tests of code with locked tasks: no server, no worker, and the locks still lock.

The store is the real one over fakeredis, which runs the very scripts that a server would. Call
tasks with ``task.apply()`` or under ``task_always_eager``. What differs from a worker there:

- ``on_conflict="requeue"`` raises ``LockConflict``: there is no message to put back.
- A chain is run link by link without knowing that it is one, so a skipped link hands its value on.
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
from celery_locks.integration.app import AppLocks, locks_of, replace_locks, unlocked_tasks
from celery_locks.integration.naming import lock_name
from celery_locks.integration.task import LockedTask
from celery_locks.options import combined
from celery_locks.types import Conflict, Holder, LockSpec, this_process

_MEMORY = "redis://in.this.process"


@contextmanager
def in_memory_locks(app: Any = None) -> Iterator[Locks]:
    """The tasks of ``app`` (the current one if none is given) take their locks in memory.

    Each block starts with no lock held. Only tasks that run in this process are meant, whatever
    server the app's settings name; ``Locks.from_app`` and ``from_url`` go on to that server.
    """
    app = app or celery.current_app._get_current_object()
    locks = _made_for(app)
    before = replace_locks(app, locks)
    try:
        yield locks
    finally:
        replace_locks(app, before)


def _made_for(app: Any) -> AppLocks:
    said = _settings_of(app)
    locks = AppLocks(_memory(), prefix=said.prefix)
    locks.settings = said
    return locks


def _settings_of(app: Any) -> settings.Settings:
    """Those of an app that may well name no server."""
    return settings.of(SimpleNamespace(conf=ChainMap({"locks_url": _MEMORY}, app.conf)))


def _memory() -> Any:
    try:
        import fakeredis
        import lupa  # noqa: F401 (fakeredis runs scripts only where it is)
    except ImportError as error:
        raise LockUsageError(
            f"locks in memory need fakeredis with Lua, and there is no {error.name}: "
            "pip install 'celery-locks[testing]'"
        ) from error
    return fakeredis.FakeRedis(server=fakeredis.FakeServer())


@contextmanager
def locks_disabled() -> Iterator[None]:
    """Every locked task in this process runs unlocked: no conflict, no server, no settings needed.

    ``self.lock`` is then something whose ``check()`` passes and whose fence is 0, and
    ``task.pending()`` is None.
    """
    with unlocked_tasks():
        yield


@contextmanager
def hold_lock(
    name: str, *, app: Any = None, limit: int = 1, slots: int | None = None
) -> Iterator[Lease]:
    """Somebody else holds the lock ``name`` while the block runs; yields their lease.

    Of a lock with a ``limit`` all slots are taken, or as many as ``slots`` says.
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
            leases.append(_held(locks, name, limit, slot))
        yield leases[0]
    finally:
        for lease in leases:
            locks.release(lease)


def _held(locks: Locks, name: str, limit: int, slot: int) -> Lease:
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
    """The name of the lock that ``task`` takes when it is called so."""
    # Not task.lock_options(): under locks_disabled() it has no key.
    options = combined(_settings_of(task.app).task, task._lock_values)
    name = lock_name(task, options, args, kwargs)
    if name is None:
        raise LockUsageError(f"task {task.name} is locked by its id, which a call makes anew")
    return name


def assert_skipped(
    result: Any, *, lock: str | None = None, patience: float = 10.0
) -> dict[str, Any]:
    """The task did not run because its lock (``lock``, if given) was busy; returns its value.

    ``result`` is what ``delay``, ``apply_async`` or ``apply`` gave, or a task's value. A result
    that a worker has yet to deliver is waited for, ``patience`` seconds long.
    """
    __tracebackhide__ = True
    value = _value_of(result, patience)
    if not _is_skip(value):
        _fail(f"the task was not skipped: {_what_happened(value)}")
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


def _what_happened(value: Any) -> str:
    if isinstance(value, LockConflict) or type(value).__name__ == "LockConflict":
        return (
            f"it failed with LockConflict, {value}. A skip needs on_conflict='skip', and where "
            "another task would be run on its result there is none"
        )
    if isinstance(value, BaseException):
        return f"it failed with {value!r}"
    return f"it ran and returned {value!r}"


def _fail(sentence: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(sentence)
