"""Buffer: collect users' messages and absorb them in batches, one worker at a time for each user.

A batch is in flight while a worker handles it under the user's lock. It is deleted when the work
succeeds and put back in order when it fails. If the worker dies, its lock lapses, and the next
``push`` or ``absorb`` of the user puts the batch back first. Users do not block each other.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from celery_locks import logs
from celery_locks.clock import now
from celery_locks.core.aio import AsyncLocks
from celery_locks.core.lease import NOT_ON_SERVER, BaseLease
from celery_locks.core.locks import Locks
from celery_locks.core.owners import current_holder
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.recipes.idempotent import release
from celery_locks.recipes.validation import as_json, check_count, check_key
from celery_locks.store.commands.recipes import RecipeCommands, UserBuffer
from celery_locks.store.effects import Operation
from celery_locks.types import Conflict, LockSpec
from celery_locks.validation import Wait, check_ttl

Work = Callable[[list[Any]], Any]


class Batch(NamedTuple):
    """The messages in flight and the lease that protects them."""

    lease: BaseLease
    messages: list[Any]


class _BufferOperations:
    """The operations of both buffers."""

    def __init__(
        self,
        locks: Locks | AsyncLocks,
        name: str,
        *,
        threshold: int = 10,
        batch: int = 1000,
        ttl: float = 30.0,
        on_ready: Callable[[str], object] | None = None,
    ) -> None:
        """Set up a buffer whose batches have at most ``batch`` messages.

        Every push that leaves at least ``threshold`` messages waiting calls ``on_ready(user)``:
        pass ``absorb_task.delay`` of a task that is unique in the queue.
        """
        self.name = check_key("a buffer's name", name)
        self.threshold = check_count("threshold", threshold)
        self.batch = check_count("batch", batch)
        check_ttl(ttl, "ttl of a buffer")
        if on_ready is not None and not callable(on_ready):
            raise LockUsageError(f"on_ready is {on_ready!r}; it must be a function of the user")
        self._ttl = ttl
        self._on_ready = on_ready
        self._any_locks = locks
        self._commands = RecipeCommands(locks.commands)

    def lock_name(self, user: str) -> str:
        """Return ``buffer:user``; colons in the buffer's name are quoted (names stay unique)."""
        buffer = self.name.replace("%", "%25").replace(":", "%3A")
        name = f"{buffer}:{check_key('a user of a buffer', user)}"
        return check_key("a buffer's name and its user together", name)

    def _user_buffer(self, user: str) -> UserBuffer:
        return UserBuffer(self.lock_name(user), self.name, user)

    def _push(self, user: str, message: Any) -> Operation[int]:
        user_buffer, text = self._user_buffer(user), as_json("the message", message)
        waiting: int = yield self._commands.push(user_buffer, text, new_token())
        return waiting

    def _call_on_ready(self, user: str, waiting: int) -> object:
        """Call ``on_ready`` if enough messages wait, and return its result."""
        return self._on_ready(user) if self._on_ready and waiting >= self.threshold else None

    def _take(self, user: str, wait: Wait | None, token: str) -> Operation[Batch | None]:
        user_buffer = self._user_buffer(user)
        operations: Any = self._any_locks.operations
        spec = LockSpec(user_buffer.name, self._ttl, wait=wait)
        lease = yield from operations.acquire(
            AcquireRequest(spec, current_holder(None), token, now())
        )
        if isinstance(lease, Conflict):
            return None
        try:
            found = yield self._commands.take_batch(user_buffer, lease.token, self.batch)
            if found is None:
                lease.lose(NOT_ON_SERVER)
                lease.check()
            return Batch(lease, [json.loads(message) for message in found])
        except BaseException:
            # A batch that the server may have handed out stays in flight until the next call.
            yield from release(self._any_locks, lease)
            raise

    def _end(self, user: str, batch: Batch, *, is_completed: bool) -> Operation[None]:
        operations: Any = self._any_locks.operations
        try:
            had_batch = True
            if batch.messages:
                had_batch = yield self._commands.end_batch(
                    self._user_buffer(user),
                    batch.lease.token,
                    new_token(),
                    is_completed=is_completed,
                )
        finally:
            yield from operations.release(batch.lease)
        if is_completed and not had_batch:
            raise batch.lease.loss(
                "it ended before the work did; another may have had the batch too"
            )

    def _put_back(self, user: str, batch: Batch) -> Operation[None]:
        """Put the batch back after a failure; an unreachable server must not hide that error."""
        try:
            yield from self._end(user, batch, is_completed=False)
        except LockUnavailable as error:
            # The pending release is tried again, and the next call puts the batch back.
            logs.log_deferred_release(batch.lease.name, error)

    def _users(self) -> Operation[dict[str, int]]:
        counts: dict[str, int] = {}
        for call in self._commands.buffered(self.name):
            counts |= yield call
        return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _check_work(work: object) -> None:
    if not callable(work):
        raise LockUsageError(f"the work of absorb is {work!r}; it must take a list of messages")


class Buffer(_BufferOperations):
    """Users' messages, for blocking code."""

    def __init__(self, locks: Locks, name: str, **options: Any) -> None:
        if not isinstance(locks, Locks):
            raise LockUsageError(
                f"Buffer needs Locks, not {locks!r}; with AsyncLocks use AsyncBuffer"
            )
        if inspect.iscoroutinefunction(options.get("on_ready")):
            raise LockUsageError("on_ready is a coroutine, which only an AsyncBuffer can await")
        super().__init__(locks, name, **options)
        self._locks = locks

    def push(self, user: str, message: Any) -> int:
        """Add a message (any JSON value) and return how many of this user wait."""
        waiting = self._locks.run(self._push(user, message))
        self._call_on_ready(user, waiting)
        return waiting

    def absorb(self, user: str, work: Work, *, wait: Wait | None = None) -> int | None:
        """Run ``work(messages)`` on this user's batch and return the number of messages.

        None: another worker has the lock (after ``wait`` seconds). 0: there are no messages. If the
        work raises, the batch is put back in order and the error propagates. ``LeaseLost``: the
        lease was lost during the work, and another worker may have had the batch too.
        """
        _check_work(work)
        token = new_token()
        try:
            batch = self._locks.run(self._take(user, wait, token))
            if batch is None:
                return None
            try:
                if batch.messages:
                    work(batch.messages)
            except BaseException:
                self._locks.run(self._put_back(user, batch))
                raise
            self._locks.run(self._end(user, batch, is_completed=True))
            return len(batch.messages)
        except BaseException:
            # The exception of a signal handler may be raised between any two of these steps.
            self._locks.operations.release_if_acquired(token)
            raise

    def users(self) -> dict[str, int]:
        """Return {user: number of messages, waiting and in flight}; most first, 1,000 a shard."""
        return self._locks.run(self._users())


class AsyncBuffer(_BufferOperations):
    """``Buffer`` for asyncio; ``work`` is a coroutine function, and ``on_ready`` may be one."""

    def __init__(self, locks: AsyncLocks, name: str, **options: Any) -> None:
        if not isinstance(locks, AsyncLocks):
            raise LockUsageError(
                f"AsyncBuffer needs AsyncLocks, not {locks!r}; with Locks use Buffer"
            )
        super().__init__(locks, name, **options)
        self._locks = locks

    async def push(self, user: str, message: Any) -> int:
        waiting = await self._locks.run(self._push(user, message))
        ready = self._call_on_ready(user, waiting)
        if inspect.isawaitable(ready):
            await ready
        return waiting

    async def absorb(
        self,
        user: str,
        work: Callable[[list[Any]], Awaitable[object]],
        *,
        wait: Wait | None = None,
    ) -> int | None:
        _check_work(work)
        batch = await self._locks.run(self._take(user, wait, new_token()))
        if batch is None:
            return None
        try:
            if batch.messages:
                await work(batch.messages)
        except BaseException:
            await self._locks.run(self._put_back(user, batch))
            raise
        await self._locks.run(self._end(user, batch, is_completed=True))
        return len(batch.messages)

    async def users(self) -> dict[str, int]:
        return await self._locks.run(self._users())
