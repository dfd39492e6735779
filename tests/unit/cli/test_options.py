"""What the command line refuses: one sentence and exit code 2, before anything is asked or done."""

from __future__ import annotations

import click
import pytest

from celery_locks import Locks, admin
from celery_locks.cli.commands import COMMANDS
from tests.support.command_line import run, take

# As a shell hands over a byte that is not UTF-8.
LATIN = "caf\udce9"


@pytest.fixture
def locks(locks: Locks) -> Locks:
    take(locks, "a")
    return locks


def without_value(part: object) -> str | None:
    """A command for a test's id, which must be UTF-8 itself."""
    return " ".join(part[:-1]) if isinstance(part, list) else None


def options_of_numbers() -> list[tuple[str, str]]:
    return [
        (name, option.opts[0])
        for name, command in COMMANDS.items()
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType)
    ]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e300"])
@pytest.mark.parametrize(("command", "option"), options_of_numbers())
def test_a_number_that_nobody_can_wait_for_is_refused(
    locks: Locks, command: str, option: str, number: str
) -> None:
    """Some of them never ended, others failed with a traceback."""
    name = ["a"] if command == "release" else []
    result = run(command, *name, f"{option}={number}")
    assert result.exit_code == 2
    # click takes what begins with a dash for an option where a value may be left out.
    assert f"Invalid value for '{option}'" in result.stderr or "No such option" in result.stderr
    assert locks.is_locked("a")


def test_a_number_is_refused_for_what_it_is(locks: Locks) -> None:
    """One that is no number is not too large."""
    assert "nan is not a number of seconds" in run("stale", "--timeout", "nan").stderr
    assert (
        "2e+09 is too large; the maximum is 1,000,000,000"
        in run("stale", "--timeout", "2e9").stderr
    )


def test_every_option_of_seconds_is_found() -> None:
    """Else the test above would say nothing."""
    assert {option for _, option in options_of_numbers()} == {
        "--every",
        "--grace",
        "--older-than",
        "--queued-for",
        "--times-usual",
        "--timeout",
        "--wait",
    }


@pytest.mark.parametrize(
    "command",
    [
        ["release", "a", "--reason", LATIN],
        ["release", "a", "--by", LATIN],
        ["release", "a", "--if-token", LATIN],
        ["stop", "a", "--reason", LATIN],
        ["stop", "a", "--by", LATIN],
        ["stop", "a", "--if-token", LATIN],
        ["sweep", "--by", LATIN],
        ["once", "reset", "a", "--reason", LATIN],
        ["once", "reset", "a", "--by", LATIN],
    ],
    ids=without_value,
)
def test_a_text_that_is_not_utf8_is_refused(locks: Locks, command: list[str]) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert f"Invalid value for '{command[-2]}'" in result.stderr
    assert r"'caf\udce9' is not UTF-8" in result.stderr
    assert locks.is_locked("a")
    assert admin.history(locks) == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["list", LATIN], 0),
        (["list", "--worker", LATIN], 0),
        (["list", "--task", LATIN], 0),
        (["top", "--times", "1", LATIN], 0),
        (["info", LATIN], 2),
        (["why", LATIN], 2),
        (["release", LATIN], 2),
        (["release", f"{LATIN}*"], 2),
        (["stop", LATIN], 2),
        (["history", LATIN], 2),
        (["once", "reset", LATIN], 2),
    ],
    ids=without_value,
)
def test_a_name_that_is_not_utf8_is_no_traceback(
    locks: Locks, command: list[str], code: int
) -> None:
    """No lock has such a name, and nothing is done to any."""
    assert run(*command).exit_code == code
    assert locks.is_locked("a")
