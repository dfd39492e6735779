"""The scripts do what the model says: every step of the traces, on a real server."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.tlc import FOLDER
from tests.model.replay import Replay, replay
from tests.model.tla_values import parse_states, parse_value
from tests.servers.embedded import EmbeddedServer
from tests.support.clocked_server import ClockedServer

TRACES = sorted((FOLDER / "traces").glob("lock_*.json"))


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


def test_traces_show_every_action_and_reply() -> None:
    """A replay proves nothing about a step that no trace has."""
    seen: Counter[tuple[str, str]] = Counter()
    for path in TRACES:
        for step in json.loads(path.read_text())["steps"]:
            seen[step["action"], step["reply"]] += 1
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
    missing = {(act, reply) for act in replies for reply in replies[act]} - set(seen)
    assert not missing


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


def test_values_of_tlc_are_read() -> None:
    """A misread state would be compared with the server as if it were the model's."""
    text = '[ a |-> <<1, -2>>, b |-> {"x y", TRUE}, c |-> ("k" :> <<>> @@ "l" :> {}) ]'
    assert parse_value(text) == {"a": [1, -2], "b": ["x y", True], "c": {"k": [], "l": []}}
    output = 'State 1: <Initial predicate>\n/\\ n = 1\n/\\ s = [ a |-> 1,\n  b |-> "c" ]\n\nend'
    assert parse_states(output) == [{"n": 1, "s": {"a": 1, "b": "c"}}]
