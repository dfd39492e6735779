"""idempotent: run the work for a key once; for functions, coroutines and tasks."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast, overload

from celery_locks import events, logs, name_from_arguments
from celery_locks.clock import now
from celery_locks.core.aio import AsyncLocks
from celery_locks.core.idempotency import Codec, Once, Repeat, failure_of, split_mark
from celery_locks.core.lease import BaseLease, State
from celery_locks.core.locks import Locks
from celery_locks.core.owners import current_holder
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockConflict, LockUnavailable, LockUsageError
from celery_locks.options import Reuse
from celery_locks.recipes.validation import as_json, check_key, check_lifetime
from celery_locks.skipped import REASONS
from celery_locks.store.commands.locks import AcquireExtras, Mark
from celery_locks.store.commands.recipes import CompletedPage, RecipeCommands
from celery_locks.store.commands.replies import Completed
from celery_locks.store.effects import Operation
from celery_locks.types import Conflict, LockSpec
from celery_locks.validation import Wait, check_seconds, check_ttl, patience_of

F = TypeVar("F", bound=Callable[..., Any])
Key = str | Callable[..., str]
JSON = Codec(lambda value: as_json("the result", value), json.loads)
REUSES = ("failed_only", "never", "always")


def idempotent(
    locks: Locks | AsyncLocks | None = None,
    /,
    *,
    key: Key,
    ttl: float = 86400.0,
    reuse: Reuse = "failed_only",
    wait: Wait | None = None,
    lock_ttl: float = 30.0,
    once_failed: float = 0.0,
) -> Callable[[F], F]:
    """Run the work for a key once in ``ttl`` seconds; a repeat gets the saved result.

    If the result cannot be saved (not serialisable, or over 64 kB), a repeat gets ``{"skipped":
    True, "reason": "already_done"}``. A failure leaves no mark; with ``once_failed``, a call within
    that many seconds gets ``{"skipped": True, "reason": "already_failed", "error": …, "failed_at":
    …}``. ``reuse`` says what may run again (``core/idempotency.py``).

    Pass ``Locks`` for a function, ``AsyncLocks`` for a coroutine. While another caller runs the
    work, a call waits for ``wait`` seconds and then raises ``LockConflict``. On a task, above or
    below ``@app.task``, omit ``locks``: it is then ``single_instance(key=…, once=ttl, reuse=…)``,
    with the app's locks and Celery's result serializer.
    """
    check_lifetime("ttl of @idempotent", ttl)
    if reuse not in REUSES:
        raise LockUsageError(f"reuse is {reuse!r}; write {' or '.join(map(repr, REUSES))}")
    check_seconds("once_failed", once_failed)
    if once_failed and reuse != "failed_only":
        raise LockUsageError(f"once_failed has no effect with reuse={reuse!r}; leave reuse out")
    if not callable(key):
        check_key("key of @idempotent", key)
    check_ttl(lock_ttl, "lock_ttl of @idempotent")
    patience_of(wait)
    if locks is None:
        return _decorate_task(key, ttl, reuse, wait, lock_ttl, once_failed)
    if not isinstance(locks, Locks | AsyncLocks):
        raise LockUsageError(f"@idempotent needs Locks or AsyncLocks, not {locks!r}")

    def decorate(function: F) -> F:
        work = _Work(function, key, ttl, reuse, wait, lock_ttl, once_failed)
        wrapped = (
            _decorate_async(locks, work)
            if isinstance(locks, AsyncLocks)
            else _decorate_sync(locks, work)
        )
        return cast(F, wrapped)

    return decorate


def _decorate_task(
    key: Key, ttl: float, reuse: Reuse, wait: Wait | None, lock_ttl: float, once_failed: float
) -> Callable[[F], F]:
    from celery_locks.integration.decorator import single_instance

    options: dict[str, Any] = {"once": ttl, "reuse": reuse, "ttl": lock_ttl}
    if once_failed:
        options["once_failed"] = once_failed
    if wait is not None:
        options |= {"wait": wait, "on_conflict": "wait"}
    return single_instance(key=key, **options)


class _Work:
    """A function and the rule by which it runs once."""

    def __init__(
        self,
        function: Any,
        key: Key,
        ttl: float,
        reuse: Reuse,
        wait: Wait | None,
        lock_ttl: float,
        once_failed: float,
    ) -> None:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise LockUsageError(
                f"@idempotent(locks, …) is for functions, not {function!r}; "
                "on a task leave the locks out: it has its app's"
            )
        self.function = function
        self._key, self._ttl, self._reuse = key, ttl, reuse
        self._wait, self._lock_ttl, self._once_failed = wait, lock_ttl, once_failed
        self._parameters = name_from_arguments.Parameters(function)
        if isinstance(key, str):
            self._parameters.check(key, f"@idempotent of {function.__qualname__}")

    def prepare(self, args: Any, kwargs: Any) -> tuple[LockSpec, Once]:
        if isinstance(self._key, str):
            name = self._parameters.name(self._key, args, kwargs)
        else:
            found = name_from_arguments.from_callable(self._key, args, kwargs)
            if found is None:
                raise LockUsageError("the key function returned None; @idempotent needs a key")
            name = found
        spec = LockSpec(name, self._lock_ttl, wait=self._wait)
        return spec, Once(f"o:{name}", self._ttl, self._reuse, JSON, self._once_failed)


def _decorate_sync(locks: Locks, work: _Work) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(work.function):
        raise LockUsageError(f"{work.function.__qualname__} is a coroutine: give AsyncLocks")

    @functools.wraps(work.function)
    def run_once(*args: Any, **kwargs: Any) -> Any:
        (spec, once), token = work.prepare(args, kwargs), new_token()
        try:
            outcome = locks.run(acquire_once(locks, spec, once, token))
            if isinstance(outcome, Repeat):
                return outcome.value
            try:
                result = work.function(*args, **kwargs)
            except BaseException as error:
                locks.run(release_failed(locks, outcome, once, error))
                raise
            locks.run(release_completed(locks, outcome, once, result))
            return result
        except BaseException:
            # The exception of a signal handler may be raised between any two of these steps.
            locks.operations.release_if_acquired(token)
            raise

    return run_once


def _decorate_async(locks: AsyncLocks, work: _Work) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(work.function):
        raise LockUsageError(f"{work.function.__qualname__} is no coroutine: give Locks")

    @functools.wraps(work.function)
    async def run_once(*args: Any, **kwargs: Any) -> Any:
        spec, once = work.prepare(args, kwargs)
        outcome = await locks.run(acquire_once(locks, spec, once, new_token()))
        if isinstance(outcome, Repeat):
            return outcome.value
        try:
            result = await work.function(*args, **kwargs)
        except BaseException as error:
            await locks.run(release_failed(locks, outcome, once, error))
            raise
        await locks.run(release_completed(locks, outcome, once, result))
        return result

    return run_once


# The steps; claims.py uses them too.


def acquire_once(
    locks: Locks | AsyncLocks, spec: LockSpec, once: Once, token: str
) -> Operation[BaseLease | Repeat]:
    """Acquire the lease for the work, or return what a repeat gets; ``LockConflict`` if busy."""
    operations: Any = locks.operations
    extras = AcquireExtras(idempotency=once.check)
    request: AcquireRequest[Any] = AcquireRequest(
        spec, current_holder(None), token, now(), extras=extras
    )
    answer = yield from operations.acquire(request)
    if isinstance(answer, Conflict):
        raise LockConflict(answer)
    if isinstance(answer, Completed):
        events.emit("already_done", spec.name, why="is not done again")
        return once.repeat(answer.mark)
    lease: BaseLease = answer
    return lease


def release_completed(
    locks: Locks | AsyncLocks, lease: BaseLease, once: Once, result: Any
) -> Operation[None]:
    """Release and leave the mark, in one call; also mark the work if the lease is lost."""
    lost = lease.state is State.LOST
    yield from release(locks, lease, [once.completed_mark(lease.token, result)])
    if lost:
        raise lease.loss("it ended before the work did; another may have run beside it")


def release_failed(
    locks: Locks | AsyncLocks, lease: BaseLease, once: Once, error: BaseException
) -> Operation[None]:
    """Release after a failure, with the mark that ``reuse`` asks for."""
    yield from release(locks, lease, once.failed_marks(lease.token, error))


def release(
    locks: Locks | AsyncLocks, lease: BaseLease, marks: Sequence[Mark] = ()
) -> Operation[None]:
    """Release the lease; if the server cannot be reached, the release stays pending."""
    operations: Any = locks.operations
    try:
        yield from operations.release(lease, marks=marks)
    except LockUnavailable as error:
        # The pending release is tried again, with the mark.
        logs.log_deferred_release(lease.name, error)


# What operators use.


class DoneWork(NamedTuple):
    """A key whose work is completed or failed; ``state`` is its reason code.

    ``size`` is that of the result; ``error`` is the one that failed work ended with, if known.
    """

    key: str
    state: str
    size: int
    lapses_in: float
    error: str = ""


def done_work(locks: Locks) -> Iterator[DoneWork]:
    """Iterate over every marked key, page by page; ``celery locks once list`` shows this."""
    commands, cursor, seen = RecipeCommands(locks.commands), "", set[str]()
    while True:
        page: CompletedPage = locks.run(commands.completed_page(cursor))
        for name, left, head, size in page.found:
            if name not in seen:
                seen.add(name)
                token, kind, text = split_mark(head.decode(errors="replace"))
                body = max(0, size - len(token) - 2) if kind == "r" else 0
                failure = failure_of(kind, text)
                error = failure.error if failure else text if kind == "f" else ""
                yield DoneWork(name, REASONS.get(kind, "already_done"), body, left, error)
        cursor = page.cursor
        if not cursor:
            return


@overload
def reset(locks: Locks, key: str, *, by: str = "", reason: str = "") -> bool: ...
@overload
def reset(locks: AsyncLocks, key: str, *, by: str = "", reason: str = "") -> Awaitable[bool]: ...
def reset(locks: Locks | AsyncLocks, key: str, *, by: str = "", reason: str = "") -> Any:
    """Delete the mark of ``key``, so that its work may run again: True if there was one.

    With ``AsyncLocks``, await it. With ``by`` it is logged in the history (``admin.history``), with
    the ``reason``. ``admin.reset_done`` is the same for operators and is always logged.
    """
    check_key("reset", key)
    if reason and not by:
        raise LockUsageError("reset: give by= too, or the reason is not recorded")
    call = RecipeCommands(locks.commands).reset(key, f"o:{key}", new_token(), by, reason)

    def operation() -> Operation[bool]:
        was_marked: bool = yield call
        return was_marked

    return locks.run(operation())
