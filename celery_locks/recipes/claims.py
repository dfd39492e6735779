"""claim and claim_or_create: whoever comes first names it, everyone else gets its name."""

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
from celery_locks.recipes.idempotent import JSON, begin, give_up, release
from celery_locks.recipes.validation import as_json, check_key, check_lifetime
from celery_locks.store.commands.locks import Mark
from celery_locks.store.commands.recipes import RecipeCommands
from celery_locks.store.effects import Operation
from celery_locks.types import LockSpec
from celery_locks.validation import CLAIMED, Wait

DAY = 86400.0
WAIT = 10.0
# Short, as it is renewed: one who dies while it creates must not use up the patience of the others.
LOCK_TTL = 5.0


@overload
def claim(locks: Locks, key: str, value: Any, ttl: float = DAY) -> tuple[bool, Any]: ...
@overload
def claim(
    locks: AsyncLocks, key: str, value: Any, ttl: float = DAY
) -> Awaitable[tuple[bool, Any]]: ...
def claim(locks: Locks | AsyncLocks, key: str, value: Any, ttl: float = DAY) -> Any:
    """Bind ``key`` to ``value`` if it is free: ``(True, value)``, or ``(False, the one it has)``.

    One atomic step. A repeated question (its answer was lost) is still answered with True.
    """
    name = _name(key)
    text = as_json(f"the value for {key!r}", value)
    token = new_token()
    mark = Mark(f"c:{key}", f"r{token} {text}", check_lifetime("ttl", ttl))

    def operation() -> Operation[tuple[bool, Any]]:
        there = yield RecipeCommands(locks.commands).claim(name, mark)
        whose, _, bound = split_mark(there)
        return whose == token, JSON.decode(bound)

    return locks.follow(operation())


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
    """Bind ``key`` to what ``factory()`` makes, once: ``(created, value)``.

    A bound key takes no lock. Otherwise the lock is held around the creation only, the binding is
    looked for again in the call that takes it, and is written before it is given back, if no
    ``claim`` was quicker: then ``(False, that value)``. Who comes meanwhile waits up to ``wait``
    seconds, then ``LockConflict``. ``lock_ttl`` is how long the lock outlives a creator that dies.
    A factory that raises, or whose value has no JSON form or one over 64 kB, leaves no binding.
    ``LockUnavailable`` after the factory has run: nobody knows whether it is bound; ask again.
    """
    once = Once(f"c:{key}", check_lifetime("ttl", ttl), "failed_only", JSON)
    spec = LockSpec(_name(key), lock_ttl, wait=wait)
    if not callable(factory):
        raise LockUsageError(f"the factory for {key!r} is {factory!r}; it must be a function")
    if isinstance(locks, AsyncLocks):
        return _create_awaited(locks, spec, once, factory)
    return _create(locks, spec, once, factory)


def _create(locks: Locks, spec: LockSpec, once: Once, factory: Callable[[], Any]) -> Any:
    token = new_token()
    try:
        begun = locks.follow(_look_then_begin(locks, spec, once, token))
        if isinstance(begun, Repeat):
            return False, begun.result
        try:
            value = factory()
            _check_made(value)
        except BaseException as error:
            locks.follow(give_up(locks, begun, once, error))
            raise
        return locks.follow(_bind(locks, begun, once, value))
    except BaseException:
        # A signal's exception may strike between any two of these steps.
        locks.operations.release_if_acquired(token)
        raise


async def _create_awaited(
    locks: AsyncLocks, spec: LockSpec, once: Once, factory: Callable[[], Any]
) -> Any:
    begun = await locks.follow(_look_then_begin(locks, spec, once, new_token()))
    if isinstance(begun, Repeat):
        return False, begun.result
    try:
        value = factory()
        if inspect.isawaitable(value):
            value = await value
        _check_made(value)
    except BaseException as error:
        await locks.follow(give_up(locks, begun, once, error))
        raise
    return await locks.follow(_bind(locks, begun, once, value))


def _bind(
    locks: Locks | AsyncLocks, lease: BaseLease, once: Once, value: Any
) -> Operation[tuple[bool, Any]]:
    """The binding that stands then, also where the lease was lost: one, whoever asks."""
    mark = once.done(lease.token, value)
    try:
        there: str = yield RecipeCommands(locks.commands).claim(lease.name, mark)
    finally:
        yield from release(locks, lease)
    if split_mark(there)[0] == lease.token:
        return True, value
    return False, once.repeat(there).result


def _check_made(value: Any) -> None:
    """A value that could not be kept would be no binding."""
    size = len(as_json("what the factory made", value))
    if size > RESULT_BYTES:
        raise LockUsageError(f"the factory made {size} bytes of JSON; {RESULT_BYTES} is the most")


def _look_then_begin(
    locks: Locks | AsyncLocks, spec: LockSpec, once: Once, token: str
) -> Operation[Any]:
    there = yield RecipeCommands(locks.commands).read(spec.name, once.mark)
    if there:
        return once.repeat(there)
    return (yield from begin(locks, spec, once, token))


@overload
def unclaim(locks: Locks, key: str) -> bool: ...
@overload
def unclaim(locks: AsyncLocks, key: str) -> Awaitable[bool]: ...
def unclaim(locks: Locks | AsyncLocks, key: str) -> Any:
    """Free the key; True if it was bound. With ``AsyncLocks``: await it."""
    call = RecipeCommands(locks.commands).reset(_name(key), f"c:{key}", new_token())

    def operation() -> Operation[bool]:
        was_bound: bool = yield call
        return was_bound

    return locks.follow(operation())


def _name(key: object) -> str:
    """The lock around the creation; not the key itself, which its user may lock too."""
    return check_key("claim", key) + CLAIMED
