"""What the layers above ask of a store, as values, and the protocol that a store fulfils.

A verb is a :class:`Call`: a value that says what to send and how to read the answer. Code above
the store is written once, as generators that yield calls (and :class:`Listen`, :class:`Nap`) and
receive answers; a store *performs* them, a sync one by blocking, an async one by awaiting. That is
why the sync and the async face share everything but the await.
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
class Listen:
    """Be ready to be woken for ``token``; answered with the channel, or None if not connected.

    With ``connect`` it subscribes if need be; a store that cannot listen, never or not now, answers
    "-", and its waiters live by polling: whether the server is there at all, the next call says.
    """

    root: str
    token: str
    connect: bool
    budget: float


@dataclass(frozen=True, slots=True)
class Nap:
    """Sleep until handed the lock, at most ``seconds``; answered with the fence, or with 0."""

    root: str
    token: str
    seconds: float


Effect = Call | Listen | Nap
Flow = Generator[Effect, Any, T]


class Store(Protocol):
    """A lock store that blocks; ``twin`` is one like it for the keeper's thread alone."""

    site: Any

    def perform(self, effect: Effect) -> Any: ...
    def unlisten(self, token: str) -> None: ...
    def twin(self) -> Store: ...
    def close(self) -> None: ...


class AsyncStore(Protocol):
    """A lock store that is awaited; ``twin`` is the blocking one the keeper thread uses."""

    def perform(self, effect: Effect) -> Awaitable[Any]: ...
    def unlisten(self, token: str) -> None: ...
    def twin(self) -> Store: ...
    async def close(self) -> None: ...


def drive(
    flow: Generator[Any, Any, T],
    perform: Callable[[Any], Any],
    struck_by: BaseException | None = None,
) -> T:
    """Run a flow to its end, performing what it yields.

    A signal's exception may strike between two steps: the flow hears of it like of any other, and
    sees to what it has taken.
    """
    try:
        effect = flow.throw(struck_by) if struck_by else next(flow)
        while True:
            try:
                answer = perform(effect)
            except BaseException as error:  # noqa: BLE001 (the flow decides)
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
    except BaseException as error:
        if getgeneratorstate(flow) == GEN_CLOSED:
            raise  # the flow has ended with it
        return drive(flow, perform, error)


async def adrive(flow: Generator[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """``drive``, awaited."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = await perform(effect)
            except BaseException as error:  # noqa: BLE001 (the flow decides)
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


__all__ = [
    "AsyncStore",
    "Call",
    "Effect",
    "Flow",
    "Listen",
    "Nap",
    "Reply",
    "Store",
    "adrive",
    "drive",
]
