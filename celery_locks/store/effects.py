"""What the layers above ask of a store, as values, and the protocol that a store fulfils.

A command is a :class:`Call`: a value that says what to send and how to read the answer. Code above
the store is written once, as generators that yield calls (and :class:`Subscribe`,
:class:`WaitForHandover`) and receive answers. A store *performs* them, a sync one by blocking, an
async one by awaiting. That is why sync and async share everything but the await.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Protocol, TypeVar

from celery_locks.store.resp import Arg, Reply
from celery_locks.store.scripts import Command, Script

T = TypeVar("T")


class Call:
    """One script on one shard; answered by ``parse(reply)`` or an error within ``budget``.

    May be performed again. It is packed when made: a waiter's answer to being woken lies ready.
    """

    __slots__ = ("args", "budget", "packed", "parse", "root", "script")

    def __init__(
        self,
        script: Script | Command,
        root: str,
        args: tuple[Arg, ...],
        parse: Callable[[Any], Any],
        budget: float,
    ) -> None:
        self.script = script
        self.root = root
        self.args = args
        self.parse = parse
        self.budget = budget
        self.packed = script.by_sha(root, args)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Be ready to be woken for ``token``; answered with the channel, or None if not connected.

    With ``connect`` it subscribes if need be; a store that cannot listen, never or not now, answers
    "-", and its waiters live by polling: whether the server is there at all, the next call says.
    """

    root: str
    token: str
    connect: bool
    budget: float


@dataclass(frozen=True, slots=True)
class WaitForHandover:
    """Sleep until handed the lock, at most ``seconds``; answered with the fence, or with 0."""

    root: str
    token: str
    seconds: float


Effect = Call | Subscribe | WaitForHandover
Operation = Generator[Effect, Any, T]


class Store(Protocol):
    """A lock store that blocks; ``twin`` is one like it for the keeper's thread alone."""

    server: Any

    def perform(self, effect: Effect) -> Any: ...
    def unsubscribe(self, token: str) -> None: ...
    def store_for_thread(self) -> Store: ...
    def close(self) -> None: ...


class AsyncStore(Protocol):
    """A lock store that is awaited; ``twin`` is the blocking one the keeper thread uses."""

    def perform(self, effect: Effect) -> Awaitable[Any]: ...
    def unsubscribe(self, token: str) -> None: ...
    def store_for_thread(self) -> Store: ...
    async def close(self) -> None: ...


def run_sync(
    operation: Generator[Any, Any, T],
    perform: Callable[[Any], Any],
    struck_by: BaseException | None = None,
) -> T:
    """Run a flow to its end, performing what it yields.

    A signal's exception may strike between two steps: the flow hears of it like of any other, and
    sees to what it has taken.
    """
    try:
        effect = operation.throw(struck_by) if struck_by else next(operation)
        while True:
            try:
                answer = perform(effect)
            except BaseException as error:  # noqa: BLE001 (the flow decides)
                effect = operation.throw(error)
            else:
                effect = operation.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
    except BaseException as error:
        if getgeneratorstate(operation) == GEN_CLOSED:
            raise  # the flow has ended with it
        return run_sync(operation, perform, error)


async def run_async(
    operation: Generator[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]
) -> T:
    """``drive``, awaited."""
    try:
        effect = next(operation)
        while True:
            try:
                answer = await perform(effect)
            except BaseException as error:  # noqa: BLE001 (the flow decides)
                effect = operation.throw(error)
            else:
                effect = operation.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


__all__ = [
    "AsyncStore",
    "Call",
    "Effect",
    "Operation",
    "Reply",
    "Store",
    "Subscribe",
    "WaitForHandover",
    "run_async",
    "run_sync",
]
