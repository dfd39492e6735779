"""Deliberately broken variants: the negative controls of the simulation.

Each is a mistake that a lock library has made. The simulation must find every one of them within a
bounded number of seeds; else its silence about the real code means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from celery_locks.core import lease, waiting
from celery_locks.store.commands.parking import ParkedMessage
from celery_locks.store.effects import WaitForHandover
from tests.simulation.parking import Worker
from tests.simulation.scheduler import perform
from tests.simulation.server import ChangeText

Patch = Callable[[pytest.MonkeyPatch], None]


def _trust(until: Callable[[float, float], float]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (lease, waiting):
            monkeypatch.setattr(module, "trusted_until", until)

    return patch


def _never_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(root: str, token: str, seconds: float) -> WaitForHandover:
        return WaitForHandover(root, token, 1e9)

    monkeypatch.setattr(waiting, "WaitForHandover", wait)


def _confirm_first(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Worker._publish

    def confirm_and_publish(self: Worker, messages: list[ParkedMessage], root: str) -> None:
        if messages:
            perform(self._commands.confirm(root, messages))
        publish(self, messages, root)

    monkeypatch.setattr(Worker, "_publish", confirm_and_publish)


def _replace(script: str, old: str, new: str) -> ChangeText:
    """Change one place of a script; fail if it is no longer there."""

    def change(name: str, text: str) -> str:
        if script not in (name, "*"):
            return text
        assert script == "*" or old in text, f"{name}.lua has no {old!r}"
        return text.replace(old, new)

    return change


@dataclass(frozen=True)
class Variant:
    """A change of the scripts, or of the package's code, or none."""

    name: str
    change: ChangeText | None = None
    patch: Patch | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            if self.patch:
                self.patch(monkeypatch)
            yield


CORRECT = Variant("correct")
BROKEN = [
    Variant(
        "release without comparing the token",
        _replace("release", "redis.call('ZREM', held, token)", "redis.call('DEL', held)"),
    ),
    Variant(
        "trusted until counted from after the reply",
        patch=_trust(lambda sent_at, ttl: lease.now() + ttl - (ttl * 0.01 + 0.002)),
    ),
    Variant(
        "trusted until without a margin for clocks",
        patch=_trust(lambda sent_at, ttl: sent_at + ttl),
    ),
    # As INCR does: it starts from nothing when the data is lost.
    Variant("a fence that restarts", _replace("*", "local number = micros", "local number = 0")),
    Variant("a renewal that creates", _replace("renew", "'XX', 'CH'", "'CH'")),
    Variant("one holder too many", _replace("*", "return in_use < (", "return in_use <= (")),
    Variant(
        "a release that leaves its record",
        _replace("release", "if is_gone then redis.call('HDEL', records, token) end", ""),
    ),
    Variant("a waiter that never asks again", patch=_never_ask_again),
    Variant(
        "two copies of one message run",
        _replace("acquire", "if copy then return yield_to(copy) end", ""),
    ),
    Variant(
        "a woken message that nobody repeats",
        _replace(
            "poll_due", "'ZADD', due, now() + PUBLISH_MS + TAKEN, member", "'ZREM', due, member"
        ),
    ),
    Variant("a wake that is confirmed before it is published", patch=_confirm_first),
]
