"""Buffer: users' messages pile up and are absorbed in batches, one pod at a time for each user.

A batch is in flight while somebody works on it under the user's lock. It is deleted when the work
succeeds and goes back in order when it fails. If the worker dies, its lock goes, and the next
``push`` or ``absorb`` of the user brings the batch back first. Users do not block each other.
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
from celery_locks.core.owners import caller
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.recipes.idempotent import release
from celery_locks.recipes.validation import as_json, check_count, check_key
from celery_locks.store.commands.recipes import Place, RecipeCommands
from celery_locks.store.effects import Operation
from celery_locks.types import Conflict, LockSpec
from celery_locks.validation import Wait, check_ttl

Work = Callable[[list[Any]], Any]


class Batch(NamedTuple):
    """What somebody may work on: the lease and the messages."""

    lease: BaseLease
    messages: list[Any]


class _BufferOperations:
    """What both buffers do, as flows."""

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
        """``on_ready(user)`` is called by the push that makes ``threshold`` messages wait, and by
        each after it: ``absorb_task.delay`` of a task that is unique in the queue goes here.
        A batch has ``batch`` messages at most.
        """
        self.name = check_key("a buffer's name", name)
        self.threshold = check_count("threshold", threshold)
        self.batch = check_count("batch", batch)
        check_ttl(ttl, "ttl of a buffer")
        if on_ready is not None and not callable(on_ready):
            raise LockUsageError(f"on_ready is {on_ready!r}; it must be a function of the user")
        self._ttl = ttl
        self._on_ready = on_ready
        self._faces = locks
        self._verbs = RecipeCommands(locks.commands)

    def lock_name(self, user: str) -> str:
        """``buffer:user``. A colon in the buffer's own name is quoted, to be no other's end."""
        buffer = self.name.replace("%", "%25").replace(":", "%3A")
        name = f"{buffer}:{check_key('a user of a buffer', user)}"
        return check_key("a buffer's name and its user together", name)

    def _place(self, user: str) -> Place:
        return Place(self.lock_name(user), self.name, user)

    def _push(self, user: str, message: Any) -> Operation[int]:
        place, text = self._place(user), as_json("the message", message)
        waiting: int = yield self._verbs.push(place, text, new_token())
        return waiting

    def _tell_ready(self, user: str, waiting: int) -> object:
        """What ``on_ready`` returned, if it was called."""
        return self._on_ready(user) if self._on_ready and waiting >= self.threshold else None

    def _take(self, user: str, wait: Wait | None, token: str) -> Operation[Batch | None]:
        place = self._place(user)
        operations: Any = self._faces.operations
        spec = LockSpec(place.name, self._ttl, wait=wait)
        lease = yield from operations.acquire(AcquireRequest(spec, caller(None), token, now()))
        if isinstance(lease, Conflict):
            return None
        try:
            found = yield self._verbs.take_batch(place, lease.token, self.batch)
            if found is None:
                lease.lose(NOT_ON_SERVER)
                lease.check()
            return Batch(lease, [json.loads(message) for message in found])
        except BaseException:
            # A batch that it may have stays in flight until the next one comes.
            yield from release(self._faces, lease)
            raise

    def _end(self, user: str, batch: Batch, *, done: bool) -> Operation[None]:
        operations: Any = self._faces.operations
        try:
            ours = True
            if batch.messages:
                place, token = self._place(user), batch.lease.token
                ours = yield self._verbs.end_batch(place, token, new_token(), done=done)
        finally:
            yield from operations.release(batch.lease)
        if done and not ours:
            raise batch.lease.loss(
                "it ended before the work did; another may have had the batch too"
            )

    def _put_back(self, user: str, batch: Batch) -> Operation[None]:
        """After work that failed, whose error goes on whatever happens here."""
        try:
            yield from self._end(user, batch, done=False)
        except LockUnavailable as error:
            # The keeper goes on trying, and the next one to come brings the batch back.
            logs.release_deferred(batch.lease.name, error)

    def _users(self) -> Operation[dict[str, int]]:
        counts: dict[str, int] = {}
        for call in self._verbs.buffered(self.name):
            counts |= yield call
        return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _check_work(work: object) -> None:
    if not callable(work):
        raise LockUsageError(f"the work of absorb is {work!r}; it must take a list of messages")


class Buffer(_BufferOperations):
    """Users' messages, for code that blocks."""

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
        """Add a message (any JSON value); returns how many of this user wait now."""
        waiting = self._locks.follow(self._push(user, message))
        self._tell_ready(user, waiting)
        return waiting

    def absorb(self, user: str, work: Work, *, wait: Wait | None = None) -> int | None:
        """Do ``work(messages)`` with this user's batch; returns how many it absorbed.

        None: another is at it (and was for ``wait`` seconds). 0: there was nothing. If the work
        raises, the batch goes back in order and the error goes on. ``LeaseLost``: the work took so
        long without a renewal that another may have had the batch too.
        """
        _check_work(work)
        token = new_token()
        try:
            batch = self._locks.follow(self._take(user, wait, token))
            if batch is None:
                return None
            try:
                if batch.messages:
                    work(batch.messages)
            except BaseException:
                self._locks.follow(self._put_back(user, batch))
                raise
            self._locks.follow(self._end(user, batch, done=True))
            return len(batch.messages)
        except BaseException:
            # A signal's exception may strike between any two of these steps.
            self._locks.operations.release_if_acquired(token)
            raise

    def users(self) -> dict[str, int]:
        """Who has messages, waiting or in flight, and how many; longest first, 1,000 a shard."""
        return self._locks.follow(self._users())


class AsyncBuffer(_BufferOperations):
    """As ``Buffer``, awaited; ``work`` is a coroutine, and ``on_ready`` may be one."""

    def __init__(self, locks: AsyncLocks, name: str, **options: Any) -> None:
        if not isinstance(locks, AsyncLocks):
            raise LockUsageError(
                f"AsyncBuffer needs AsyncLocks, not {locks!r}; with Locks use Buffer"
            )
        super().__init__(locks, name, **options)
        self._locks = locks

    async def push(self, user: str, message: Any) -> int:
        waiting = await self._locks.follow(self._push(user, message))
        describe_entry = self._tell_ready(user, waiting)
        if inspect.isawaitable(describe_entry):
            await describe_entry
        return waiting

    async def absorb(
        self,
        user: str,
        work: Callable[[list[Any]], Awaitable[object]],
        *,
        wait: Wait | None = None,
    ) -> int | None:
        _check_work(work)
        batch = await self._locks.follow(self._take(user, wait, new_token()))
        if batch is None:
            return None
        try:
            if batch.messages:
                await work(batch.messages)
        except BaseException:
            await self._locks.follow(self._put_back(user, batch))
            raise
        await self._locks.follow(self._end(user, batch, done=True))
        return len(batch.messages)

    async def users(self) -> dict[str, int]:
        return await self._locks.follow(self._users())
