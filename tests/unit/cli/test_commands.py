"""The help is what somebody reads at night: each summary is whole on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import click
import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_locks.cli import locks, main
from celery_locks.cli.commands import COMMANDS

# As it is reached: `celery-locks`, and below `celery -A proj`.
GROUPS = {"alone": main, "below celery": locks, "once": COMMANDS["once"]}


def summaries(group: click.Command) -> Iterator[tuple[str, str]]:
    """The names of the commands with their lines in the group's help."""
    context = click.Context(group, obj=SimpleNamespace(), terminal_width=80, max_content_width=80)
    _, _, after = group.get_help(context).partition("Commands:\n")
    for line in after.partition("\n\n")[0].splitlines():
        name, _, summary = line.strip().partition(" ")
        yield name, summary.strip()


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_each_summary_is_whole(group: click.Group) -> None:
    """One that is cut says nothing: "What is set up wrongly: the server and, with..."."""
    found = dict(summaries(group))
    assert set(found) == set(group.list_commands(click.Context(group)))
    assert all(summary and not summary.endswith("...") for summary in found.values()), found


def test_the_summary_of_locks_is_whole_among_celerys_own() -> None:
    """Celery shows its commands with a help of its own."""
    output = CliRunner().invoke(celery, ["--help"], terminal_width=80).output
    [line] = [line for line in output.splitlines() if line.strip().startswith("locks ")]
    assert not line.rstrip().endswith("..."), line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, ["--url", "redis://127.0.0.1:1", name, "--help"])
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
