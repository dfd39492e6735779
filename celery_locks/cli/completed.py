"""The commands for work that is marked as done."""

from __future__ import annotations

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING
from celery_locks.cli.context import (
    Context,
    echo,
    echo_json,
    echo_json_list,
    exit_with,
    json_option,
    pass_context,
)
from celery_locks.cli.options import by_option, reason_option
from celery_locks.cli.render import table


@click.group()
def once() -> None:
    """List work that is marked as done or failed, or reset it.

    Tasks with once= and functions with @idempotent mark their work as done.
    """


@once.command("list")
@json_option
@pass_context
def list_done(context: Context, as_json: bool) -> None:
    """List every key whose work is marked as done or failed."""
    if as_json:
        echo_json_list(work._asdict() for work in admin.list_done(context.locks))
        return
    found = False
    cells = (
        (
            work.key,
            work.state,
            work.error or f"{work.size} B",
            admin.format_duration(work.lapses_in),
        )
        for work in admin.list_done(context.locks)
    )
    for line in table(("KEY", "STATE", "RESULT", "EXPIRES IN"), cells):
        echo(line)
        found = True
    if not found:
        echo("No work is marked as done.")


@once.command("reset")
@click.argument("key")
@reason_option
@by_option
@json_option
@pass_context
def reset_done(context: Context, key: str, reason: str, by: str, as_json: bool) -> None:
    """Allow the work for a key to run again."""
    was_marked = admin.reset_done(context.locks, key, reason=reason, by=by)
    if as_json:
        echo_json({"key": key, "reset": was_marked})
    elif was_marked:
        echo(f"The work for {key!r} may run again.")
    if not was_marked:
        exit_with(FOUND_NOTHING, "" if as_json else f"No work is marked as done for {key!r}.")
