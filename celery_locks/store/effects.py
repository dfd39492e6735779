"""The effects that operations request from a store, as values, and the protocol of a store.

A command is a :class:`Call`: a value with what to send and how to read the reply. An operation is a
generator: it yields effects (calls, :class:`Subscribe`, :class:`WaitForHandover`, :class:`Sleep`)
and receives their results. A store *performs* an effect, a sync one by blocking, an async one by
awaiting. So sync and async share everything but the await.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Protocol, TypeVar

from celery_locks.store.scripts import Arg, PlainCommand, Script

T = TypeVar("T")


class Call:
    """One script on one shard; its result is ``parse(reply)``, or an error within ``budget``.

    ``keys`` are those that come after the keys of the shard; see ``scripts``. A call may be
    performed again. It is packed when it is created: a waiter has its claim ready before it is
    woken.
    """

    __slots__ = ("args", "budget", "keys", "packed", "parse", "root", "script")

    def __init__(
        self,
        script: Script | PlainCommand,
        root: str,
        keys: tuple[str, ...],
        args: tuple[Arg, ...],
        parse: Callable[[Any], Any],
        budget: float,
    ) -> None:
        self.script = script
        self.root = root
        self.keys = keys
        self.args = args
        self.parse = parse
        self.budget = budget
        self.packed = script.by_sha(root, keys, args)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Prepare to be woken for ``token``; the result is the channel, or None if not connected.

    With ``connect`` the store subscribes if it has not yet. If it cannot subscribe, the result is
    "-" and the waiter polls: the next call finds out whether the server can be reached at all.
    """

    root: str
    token: str
    connect: bool
    budget: float


@dataclass(frozen=True, slots=True)
class WaitForHandover:
    """Sleep until the lock is handed over, at most ``seconds``; the result is the fence, or 0."""

    root: str
    token: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Sleep for some seconds."""

    seconds: float


Effect = Call | Subscribe | WaitForHandover | Sleep
Operation = Generator[Effect, Any, T]


class Store(Protocol):
    """A lock store that blocks; ``store_for_thread`` makes another for the background thread."""

    server: Any

    def perform(self, effect: Effect) -> Any: ...
    def unsubscribe(self, token: str) -> None: ...
    def store_for_thread(self) -> Store: ...
    def close(self) -> None: ...


class AsyncStore(Protocol):
    """A lock store that is awaited; ``store_for_thread`` makes a blocking one for the renewer."""

    def perform(self, effect: Effect) -> Awaitable[Any]: ...
    def unsubscribe(self, token: str) -> None: ...
    def store_for_thread(self) -> Store: ...
    async def close(self) -> None: ...


def run_sync(
    operation: Generator[Any, Any, T],
    perform: Callable[[Any], Any],
    error: BaseException | None = None,
) -> T:
    """Run an operation to its end and perform the effects that it yields.

    The exception of a signal handler may be raised between two steps. It is thrown into the
    operation like any other error, so that the operation releases what it has acquired.
    """
    try:
        effect = operation.throw(error) if error else next(operation)
        while True:
            try:
                result = perform(effect)
            except BaseException as failure:  # noqa: BLE001 (the operation decides)
                effect = operation.throw(failure)
            else:
                effect = operation.send(result)
    except StopIteration as done:
        value: T = done.value
        return value
    except BaseException as interruption:
        if getgeneratorstate(operation) == GEN_CLOSED:
            raise  # the operation has ended with it
        return run_sync(operation, perform, interruption)


async def run_async(
    operation: Generator[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]
) -> T:
    """Run an operation to its end, as ``run_sync`` does, and await its effects."""
    try:
        effect = next(operation)
        while True:
            try:
                result = await perform(effect)
            except BaseException as failure:  # noqa: BLE001 (the operation decides)
                effect = operation.throw(failure)
            else:
                effect = operation.send(result)
    except StopIteration as done:
        value: T = done.value
        return value
