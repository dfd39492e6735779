"""What all commands have in common: exit codes, JSON, sentences about what is not there."""

from __future__ import annotations

import json

import pytest

from celery_locks import Locks
from tests.support.command_line import run, take

NOWHERE = "redis://127.0.0.1:1/0"


EVERY = [
    ["list"],
    ["info", "a"],
    ["why", "a"],
    ["release", "a", "--yes", "--reason", "it hangs"],
    ["stop", "a"],
    ["stale"],
    ["top", "--times", "1"],
    ["history"],
    ["check"],
]


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command[0])
def test_a_server_that_is_down_ends_with_3(command: list[str]) -> None:
    result = run(*command, url=NOWHERE)
    assert result.exit_code == 3
    assert "gave no answer" in result.stderr


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command[0])
def test_json_parses(locks: Locks, command: list[str]) -> None:
    """Also where there is nothing to tell."""
    if command[0] != "release":  # a refusal is a sentence
        json.loads(run(*command, "--json").stdout)
    take(locks, "a", task_id="t", task="bill", worker="w")
    assert run(*command, "--json").exit_code == 0
    take(locks, "a", task_id="t", task="bill", worker="w")
    json.loads(run(*command, "--json").stdout)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["why", "x" * 600], "512 is the most"),
        (["list", "--state", "stuck"], "'held', 'waiting', 'queued'"),
        (["stale", "--older-than", "soon"], "not a valid float"),
        (["info"], "Missing argument"),
        (["release", "*", "--if-token", "t"], "not with a glob"),
        (["sweep"], "celery -A proj locks sweep"),
    ],
)
def test_bad_input_ends_with_2_and_a_sentence(
    locks: Locks, command: list[str], sentence: str
) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["info", "free"], "Nobody holds lock 'free' or waits for it."),
        (["release", "free"], "Nobody holds lock 'free'."),
        (["release", "free*"], "Nobody holds lock 'free*'."),
        (["release", "a", "--if-token", "x"], "Nobody holds lock 'a' with token 'x'."),
        (["stop", "free"], "Nobody holds lock 'free'."),
    ],
)
def test_nothing_there_ends_with_1(locks: Locks, command: list[str], sentence: str) -> None:
    take(locks, "a")
    result = run(*command)
    assert (result.exit_code, result.stderr) == (1, sentence + "\n")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["list"], "No locks."),
        (["stale"], "No stale locks."),
        (["history"], "The history is empty."),
        (["history", "--acts"], "No operator has done anything."),
    ],
)
def test_an_empty_answer_is_an_answer(locks: Locks, command: list[str], sentence: str) -> None:
    result = run(*command)
    assert (result.exit_code, result.stdout) == (0, sentence + "\n")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["info", "night"], "Did you mean 'night:b' or 'night:c'?"),
        (["info", "nihgt:c"], "Did you mean 'night:c' or 'night:b'?"),
        (["why", "night:d"], "Did you mean 'night:c' or 'night:b'?"),
        (["release", "night:"], "Did you mean 'night:b' or 'night:c'?"),
        (["stop", "ight:c"], "Did you mean 'night:c'?"),
        (["info", "night:*"], "not a pattern: 'night:*' matches 'night:b' and 'night:c'."),
        (["why", "night:?"], "not a pattern: 'night:?' matches 'night:b' and 'night:c'."),
        (["info", "*t*"], "matches 'month:a', 'month:b', 'month:c' and 2 more."),
    ],
)
def test_a_near_miss_is_answered_with_the_name(
    locks: Locks, command: list[str], sentence: str
) -> None:
    """At night one types what one remembers of a name."""
    take(locks, "night:c", "night:b", "month:a", "month:b", "month:c")
    result = run(*command)
    assert result.exit_code == 1
    assert sentence in result.output
