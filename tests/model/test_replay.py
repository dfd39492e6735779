"""The scripts do what the model says: every step of the traces, on a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.tlc import FOLDER
from tests.model.park_replay import ParkReplay
from tests.model.replay import Replay, replay
from tests.model.tla_values import parse_states, parse_value
from tests.servers.embedded import EmbeddedServer
from tests.support.clocked_server import ROOT, ClockedServer

TRACES = sorted((FOLDER / "traces").glob("lock_*.json"))
PARK_TRACES = sorted((FOLDER / "traces").glob("park_*.json"))


@pytest.fixture(scope="module")
def server(valkey: EmbeddedServer) -> Iterator[ClockedServer]:
    clocked = ClockedServer(valkey)
    yield clocked
    clocked.forget()
    clocked.close()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace_is_what_the_scripts_do(server: ClockedServer, path: Path) -> None:
    """Model and code cannot diverge: replies, holders, queue and the order of fences are equal."""
    replay(server, path)


@pytest.mark.parametrize("path", PARK_TRACES, ids=lambda path: path.stem)
def test_trace_of_parking_is_what_the_scripts_do(server: ClockedServer, path: Path) -> None:
    """Replies, holder, queue, stored messages, what is due and what has ended are equal."""
    ParkReplay(server).run(steps_of(path))


def steps_of(path: Path) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(path.read_text())["steps"]
    return steps


def seen_in(paths: list[Path]) -> set[tuple[str, str]]:
    return {(step["action"], step["reply"]) for path in paths for step in steps_of(path)}


def test_traces_of_parking_show_every_action_and_reply() -> None:
    """A replay proves nothing about a step that no trace has."""
    replies = {
        "acquire": (
            *("granted", "taken_over", "copy", "ended"),
            *("parked", "parked_later", "parked_again", "woken_later"),
        ),
        "release": ("",),
        "poll_due": ("",),
        "confirm_wake": ("confirmed", "stale"),
        "turn_ends": ("",),
        "lapse_of_run": ("",),
        "lapse_of_kept": ("",),
    }
    assert not {(act, reply) for act in replies for reply in replies[act]} - seen_in(PARK_TRACES)


def test_traces_show_every_action_and_reply() -> None:
    """A replay proves nothing about a step that no trace has."""
    replies = {
        "acquire": ("granted", "busy", "copy", "ended", ""),
        "renew": ("renewed", "lost", ""),
        "release": ("released", ""),
        "leave": ("released", ""),
        "force": ("",),
        "replicate": ("",),
        "failover": ("",),
        "tick": ("",),
    }
    assert not {(act, reply) for act in replies for reply in replies[act]} - seen_in(TRACES)


def test_replay_notices_a_script_that_does_something_else(server: ClockedServer) -> None:
    """A replay that compares nothing would pass too."""

    class ReleasesByName(Replay):
        def do_release(self, token: str) -> str:
            return super().do_release(next(iter(self.fences), token))

    def noticed(path: Path) -> bool:
        trace: dict[str, Any] = json.loads(path.read_text())
        try:
            ReleasesByName(server, trace["constants"]).run(trace["steps"])
        except AssertionError:
            return True
        return False

    assert any(noticed(path) for path in TRACES)


class ConfirmsByToken(ParkReplay):
    """A confirmation that does not tell a message from a later one with its token."""

    def do_confirm_wake(self, step: dict[str, Any]) -> str:
        message = self.taken[step["who"]]
        stored = self.server.raw.hget(f"{ROOT}parked", message.token) or b"0 0 0"
        self.taken[step["who"]] = message._replace(number=int(stored.split(b" ")[1]))
        return super().do_confirm_wake(step)


class WakesOnce(ParkReplay):
    """A poll after which nobody gets the message again."""

    def do_poll_due(self, step: dict[str, Any]) -> None:
        super().do_poll_due(step)
        self.server.perform(self.parking.confirm(ROOT, [self.taken[step["who"]]]))


@pytest.mark.parametrize("mistake", [ConfirmsByToken, WakesOnce])
def test_replay_of_parking_notices_a_mistake(
    server: ClockedServer, mistake: type[ParkReplay]
) -> None:
    """These are mistakes that the model finds too: a replay that compares nothing would pass."""

    def noticed(path: Path) -> bool:
        try:
            mistake(server).run(steps_of(path))
        except AssertionError:
            return True
        return False

    assert any(noticed(path) for path in PARK_TRACES)


def test_values_of_tlc_are_read() -> None:
    """A misread state would be compared with the server as if it were the model's."""
    text = '[ a |-> <<1, -2>>, b |-> {"x y", TRUE}, c |-> ("k" :> <<>> @@ "l" :> {}) ]'
    assert parse_value(text) == {"a": [1, -2], "b": ["x y", True], "c": {"k": [], "l": []}}
    output = 'State 1: <Initial predicate>\n/\\ n = 1\n/\\ s = [ a |-> 1,\n  b |-> "c" ]\n\nend'
    assert parse_states(output) == [{"n": 1, "s": {"a": 1, "b": "c"}}]
