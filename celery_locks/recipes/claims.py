"""claim and claim_or_create: the first caller binds a key to a value, the others get that value."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, overload

from celery_locks.core.aio import AsyncLocks
from celery_locks.core.idempotency import RESULT_BYTES, Once, Repeat, split_mark
from celery_locks.core.lease import BaseLease
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.errors import LockUsageError
from celery_locks.recipes.idempotent import JSON, acquire_once, release, release_failed
from celery_locks.recipes.validation import as_json, check_key, check_lifetime
from celery_locks.store.commands.locks import Mark
from celery_locks.store.commands.recipes import RecipeCommands
from celery_locks.store.effects import Operation
from celery_locks.types import LockSpec
from celery_locks.validation import CLAIMED, Wait

DAY = 86400.0
WAIT = 10.0
# Short, as it is renewed: a creator that dies must not use up the ``wait`` of the others.
LOCK_TTL = 5.0


@overload
def claim(locks: Locks, key: str, value: Any, ttl: float = DAY) -> tuple[bool, Any]: ...
@overload
def claim(
    locks: AsyncLocks, key: str, value: Any, ttl: float = DAY
) -> Awaitable[tuple[bool, Any]]: ...
def claim(locks: Locks | AsyncLocks, key: str, value: Any, ttl: float = DAY) -> Any:
    """Bind ``key`` to ``value`` if it is free: ``(True, value)``, else ``(False, bound value)``.

    One atomic step. A call that is repeated because its reply was lost still returns True.
    """
    name = _lock_name(key)
    text = as_json(f"the value for {key!r}", value)
    token = new_token()
    mark = Mark(f"c:{key}", f"r{token} {text}", check_lifetime("ttl", ttl))

    def operation() -> Operation[tuple[bool, Any]]:
        there = yield RecipeCommands(locks.commands).claim(name, mark)
        whose, _, bound = split_mark(there)
        return whose == token, JSON.decode(bound)

    return locks.run(operation())


@overload
def claim_or_create(
    locks: Locks,
    key: str,
    factory: Callable[[], Any],
    ttl: float = DAY,
    *,
    wait: Wait = WAIT,
    lock_ttl: float = LOCK_TTL,
) -> tuple[bool, Any]: ...
@overload
def claim_or_create(
    locks: AsyncLocks,
    key: str,
    factory: Callable[[], Awaitable[Any] | Any],
    ttl: float = DAY,
    *,
    wait: Wait = WAIT,
    lock_ttl: float = LOCK_TTL,
) -> Awaitable[tuple[bool, Any]]: ...
def claim_or_create(
    locks: Locks | AsyncLocks,
    key: str,
    factory: Callable[[], Any],
    ttl: float = DAY,
    *,
    wait: Wait = WAIT,
    lock_ttl: float = LOCK_TTL,
) -> Any:
    """Bind ``key`` to the value of ``factory()``, once: ``(created, value)``.

    A bound key takes no lock. Otherwise a lock is held around the creation only. The acquire checks
    the binding again, and the binding is written before the release. If a ``claim`` was faster, the
    result is ``(False, that value)``. Other callers wait up to ``wait`` seconds, then
    ``LockConflict``. ``lock_ttl`` is how long the lock outlives a creator that dies. A factory that
    raises, or whose value has no JSON form or one over 64 kB, leaves no binding. After
    ``LockUnavailable`` from a factory that has run, the binding is unknown; call again.
    """
    once = Once(f"c:{key}", check_lifetime("ttl", ttl), "failed_only", JSON)
    spec = LockSpec(_lock_name(key), lock_ttl, wait=wait)
    if not callable(factory):
        raise LockUsageError(f"the factory for {key!r} is {factory!r}; it must be a function")
    if isinstance(locks, AsyncLocks):
        return _create_async(locks, spec, once, factory)
    return _create(locks, spec, once, factory)


def _create(locks: Locks, spec: LockSpec, once: Once, factory: Callable[[], Any]) -> Any:
    token = new_token()
    try:
        outcome = locks.run(_read_or_acquire(locks, spec, once, token))
        if isinstance(outcome, Repeat):
            return False, outcome.result
        try:
            value = factory()
            _check_value(value)
        except BaseException as error:
            locks.run(release_failed(locks, outcome, once, error))
            raise
        return locks.run(_bind(locks, outcome, once, value))
    except BaseException:
        # The exception of a signal handler may be raised between any two of these steps.
        locks.operations.release_if_acquired(token)
        raise


async def _create_async(
    locks: AsyncLocks, spec: LockSpec, once: Once, factory: Callable[[], Any]
) -> Any:
    outcome = await locks.run(_read_or_acquire(locks, spec, once, new_token()))
    if isinstance(outcome, Repeat):
        return False, outcome.result
    try:
        value = factory()
        if inspect.isawaitable(value):
            value = await value
        _check_value(value)
    except BaseException as error:
        await locks.run(release_failed(locks, outcome, once, error))
        raise
    return await locks.run(_bind(locks, outcome, once, value))


def _bind(
    locks: Locks | AsyncLocks, lease: BaseLease, once: Once, value: Any
) -> Operation[tuple[bool, Any]]:
    """Write and return the binding, also if the lease was lost: there is one for all callers."""
    mark = once.completed_mark(lease.token, value)
    try:
        current: str = yield RecipeCommands(locks.commands).claim(lease.name, mark)
    finally:
        yield from release(locks, lease)
    if split_mark(current)[0] == lease.token:
        return True, value
    return False, once.repeat(current).result


def _check_value(value: Any) -> None:
    """Refuse a value that cannot be stored: it could not be bound."""
    size = len(as_json("what the factory made", value))
    if size > RESULT_BYTES:
        raise LockUsageError(f"the factory made {size} bytes of JSON; {RESULT_BYTES} is the most")


def _read_or_acquire(
    locks: Locks | AsyncLocks, spec: LockSpec, once: Once, token: str
) -> Operation[Any]:
    current = yield RecipeCommands(locks.commands).read(spec.name, once.mark)
    if current:
        return once.repeat(current)
    return (yield from acquire_once(locks, spec, once, token))


@overload
def unclaim(locks: Locks, key: str) -> bool: ...
@overload
def unclaim(locks: AsyncLocks, key: str) -> Awaitable[bool]: ...
def unclaim(locks: Locks | AsyncLocks, key: str) -> Any:
    """Delete the binding of a key: True if there was one. With ``AsyncLocks``, await it."""
    call = RecipeCommands(locks.commands).reset(_lock_name(key), f"c:{key}", new_token())

    def operation() -> Operation[bool]:
        was_bound: bool = yield call
        return was_bound

    return locks.run(operation())


def _lock_name(key: object) -> str:
    """Return the name of the lock around the creation; users may lock the key itself."""
    return check_key("claim", key) + CLAIMED
