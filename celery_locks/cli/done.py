"""The commands about work that is marked as done."""

from __future__ import annotations

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING
from celery_locks.cli.desk import Desk, end, json_option, pass_desk, say, say_json, say_json_list
from celery_locks.cli.options import by_option, reason_option
from celery_locks.cli.render import table


@click.group()
def once() -> None:
    """Work that is done once (once=, @idempotent): which is, and letting it be done again."""


@once.command("list")
@json_option
@pass_desk
def list_done(desk: Desk, as_json: bool) -> None:
    """Every key whose work is marked as done."""
    if as_json:
        say_json_list(work._asdict() for work in admin.list_done(desk.locks))
        return
    found = False
    cells = (
        (work.key, work.state, f"{work.size} B", f"{work.lapses_in:.0f} s")
        for work in admin.list_done(desk.locks)
    )
    for line in table(("KEY", "STATE", "RESULT", "FORGOTTEN IN"), cells):
        say(line)
        found = True
    if not found:
        say("No work is marked as done.")


@once.command("reset")
@click.argument("key")
@reason_option
@by_option
@json_option
@pass_desk
def reset_done(desk: Desk, key: str, reason: str, by: str, as_json: bool) -> None:
    """Let the work for a key be done again."""
    was_marked = admin.reset_done(desk.locks, key, reason=reason, by=by)
    if as_json:
        say_json({"key": key, "reset": was_marked})
    elif was_marked:
        say(f"The work for {key!r} may be done again.")
    if not was_marked:
        end(FOUND_NOTHING, "" if as_json else f"No work is marked as done for {key!r}.")
