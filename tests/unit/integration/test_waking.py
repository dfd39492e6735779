"""The waker: what it publishes, and what it leaves to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.errors import ForeignData
from celery_locks.integration import waking
from celery_locks.integration.waking import Waker
from celery_locks.store.commands.parking import Due, ParkedMessage


def message(task: str) -> ParkedMessage:
    return ParkedMessage(f"k{task}", 1, f'{{"headers": {{"task": "{task}", "id": "{task}"}}}}')


class Server:
    """A lock server with one shard; ``foreign`` are names under which others keep their data."""

    def __init__(self, *polls: Due, foreign: tuple[str, ...] = ()) -> None:
        self.polls, self.foreign = list(polls), foreign
        self.done: list[Any] = []
        self.commands = SimpleNamespace(roots=["root"])

    def perform(self, call: tuple[str, Any]) -> Any:
        kind, values = call
        if kind == "poll":
            return self.polls.pop(0) if self.polls else Due(None, [], [])
        if kind == "wake" and set(values) & set(self.foreign):
            raise ForeignData("a key holds a list")
        self.done.append((kind, [getattr(it, "token", it) for it in values]))
        return 1


class Commands:
    def __init__(self, _: Any) -> None: ...

    def poll(self, _: str) -> Any:
        return "poll", ()

    def wake_waiters(self, _: str, names: list[str]) -> Any:
        return "wake", names

    def confirm(self, _: str, messages: Any, kept: Any) -> Any:
        assert not kept
        return "confirm", messages

    def give_back(self, _: str, messages: Any) -> Any:
        return "give back", messages


@pytest.fixture
def wake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a worker with the task "known" poll a server."""
    published: list[str] = []
    monkeypatch.setattr(waking, "ParkCommands", Commands)
    monkeypatch.setattr(waking, "stop_displaced", lambda *_: None)
    monkeypatch.setattr(waking, "publish_message", lambda _, text, __: published.append(text))

    def run(server: Server) -> int:
        monkeypatch.setattr(waking, "locks_of", lambda _: server)
        return Waker(SimpleNamespace(tasks={"known": None})).wake_due()

    run.published = published  # type: ignore[attr-defined]
    return run


def test_message_of_a_task_that_the_worker_does_not_have_is_given_back(wake: Any) -> None:
    """Its app may have another broker, where nobody would run it."""
    server = Server(Due(None, [], [message("known"), message("foreign")]))
    assert wake(server) == 1
    assert server.done == [("give back", ["kforeign"]), ("confirm", ["kknown"])]
    assert len(wake.published) == 1


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"headers": null}'])
def test_message_that_nobody_can_read_does_not_hold_up_others(
    wake: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    broken = ParkedMessage("kbroken", 1, text)

    def publish(_: Any, message: str, __: str | None) -> None:
        if message == text:
            raise ValueError("it cannot be read")

    monkeypatch.setattr(waking, "publish_message", publish)
    server = Server(Due(None, [], [broken, message("known")]))
    assert wake(server) == 1
    assert server.done == [("confirm", ["kknown"])]


def test_lock_with_foreign_data_does_not_keep_others_from_being_woken(wake: Any) -> None:
    server = Server(Due(None, ["a", "bad", "b"], [message("known")]), foreign=("bad",))
    assert wake(server) == 1
    assert server.done == [("confirm", ["kknown"]), ("wake", ["a"]), ("wake", ["b"])]


def test_names_that_woke_a_message_are_polled_again(wake: Any) -> None:
    server = Server(Due(5.0, ["a"], []), Due(5.0, [], [message("known")]))
    assert wake(server) == 1
