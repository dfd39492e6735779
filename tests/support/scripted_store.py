"""A store that answers from a script, so that a test says what each call meets.

    store = ScriptedStore(("acquire", 7), ("release", LockUnavailable("away")))

The script is a list of pairs: the effect that must come next (the name of its command,
``subscribe`` or ``wait``), and the reply as the command parses it. A reply that is an exception is
raised; a function is called with the effect, and its result is the reply. An effect that the script
does not expect fails the test in ``check()``: the code under test may survive any exception.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from celery_locks.errors import LockUnavailable
from celery_locks.store.effects import (
    Call,
    Effect,
    Operation,
    Subscribe,
    WaitForHandover,
    run_sync,
)
from tests.support.sent_calls import (
    SentAcquire,
    SentRelease,
    SentRenewal,
    names_in,
    read_acquire,
    read_release,
    read_renewals,
    renew_reply,
)

Step = tuple[str, Any]
T = TypeVar("T")


def name_of(effect: Effect) -> str:
    if isinstance(effect, Subscribe):
        return "subscribe"
    return "wait" if isinstance(effect, WaitForHandover) else effect.script.name


def reply_lost() -> LockUnavailable:
    """Return the error of a call that the server may have executed, or may yet execute."""
    error = LockUnavailable("the reply is lost")
    error.may_have_executed = True
    return error


class ScriptedStore:
    """A store that blocks; see the module's docstring."""

    def __init__(self, *script: Step, address: str = "scripted") -> None:
        self.server = SimpleNamespace(addresses=((address, 6379),), topology="single")
        self._script = list(script)
        self._problems: list[str] = []
        self.performed: list[Any] = []
        self.unsubscribed: list[str] = []

    def expect(self, *script: Step) -> None:
        """Add to the end of the script."""
        self._script += script

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end, as ``Locks`` does."""
        return run_sync(operation, self.perform)

    @property
    def names(self) -> list[str]:
        """The names of the effects so far."""
        return [name_of(effect) for effect in self.performed]

    def _calls(self, name: str) -> list[Call]:
        return [it for it in self.performed if isinstance(it, Call) and name_of(it) == name]

    @property
    def acquires(self) -> list[SentAcquire]:
        return [read_acquire(call) for call in self._calls("acquire")]

    @property
    def releases(self) -> list[SentRelease]:
        return [read_release(call) for call in self._calls("release")]

    @property
    def renewals(self) -> list[SentRenewal]:
        """The leases that were renewed, in their order."""
        return [renewal for call in self._calls("renew") for renewal in read_renewals(call)]

    def perform(self, effect: Effect) -> Any:
        self.performed.append(effect)
        expected, reply = self._script.pop(0) if self._script else ("nothing", None)
        if expected != name_of(effect):
            self._problems.append(f"{name_of(effect)} instead of {expected}")
            raise AssertionError(self._problems[-1])
        answer = reply(effect) if callable(reply) else reply
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def check(self) -> None:
        """Fail unless every effect was expected, and every expected one came."""
        assert not self._problems, f"{self._problems}; all effects: {self.names}"
        assert not self._script, f"these did not come: {[name for name, _ in self._script]}"

    def unsubscribe(self, token: str) -> None:
        self.unsubscribed.append(token)

    def store_for_thread(self) -> ScriptedStore:
        return self

    def close(self) -> None: ...


class AnsweringStore(ScriptedStore):
    """A store without a script: it renews all but the ``lost`` and releases everything.

    ``trouble`` is raised by every call, or by those about the lock ``troubled``. ``meanwhile`` is
    called while a call is on its way.
    """

    def __init__(self, address: str = "answering") -> None:
        super().__init__(address=address)
        self.lost: set[str] = set()
        self.trouble: Exception | None = None
        self.troubled = ""
        self.meanwhile: Callable[[], object] = lambda: None

    def perform(self, effect: Effect) -> Any:
        assert isinstance(effect, Call)
        self.performed.append(effect)
        self.meanwhile()
        if self.trouble and (not self.troubled or self.troubled in names_in(effect)):
            raise self.trouble
        return renew_reply(*self.lost) if name_of(effect) == "renew" else True
