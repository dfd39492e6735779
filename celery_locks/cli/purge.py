"""The command that removes parked messages."""

from __future__ import annotations

import shlex

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT
from celery_locks.cli.context import Context, echo, echo_json, exit_with, json_option, pass_context
from celery_locks.cli.manage import is_terminal
from celery_locks.cli.options import Text, by_option, reason_option

_SHOWN = 20


@click.command()
@click.argument("name")
@click.option("--task-id", type=Text(), help="Remove only the message of this task.")
@reason_option
@by_option
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; scripts also need --reason."
)
@json_option
@pass_context
def purge(
    context: Context,
    name: str,
    task_id: str | None,
    reason: str,
    by: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove parked messages of a lock: these tasks never run.

    With an app their results are REVOKED. The command asks for confirmation and for a reason;
    scripts pass --yes and --reason.
    """
    if not (yes and reason):
        reason = _confirm(context, name, task_id, reason, yes, can_ask=not as_json)
    purged = admin.purge(
        context.locks, name, reason=reason, by=by, task_id=task_id, app=context.app
    )
    if as_json:
        echo_json(purged.as_dict())
    else:
        _print(purged)
    if purged.trouble:
        exit_with(FOUND_NOTHING, f"More messages may have been removed: {purged.trouble}.")
    if not purged.messages:
        exit_with(FOUND_NOTHING, _nothing(name, task_id))


def _confirm(
    context: Context, name: str, task_id: str | None, reason: str, yes: bool, can_ask: bool
) -> str:
    """Return the reason after the operator agreed; exit if not."""
    lock = context.locks.info(name)
    count = 1 if task_id is not None else lock.parked if lock else 0
    if not count:
        exit_with(FOUND_NOTHING, _nothing(name, task_id))
    what = f"the message of task {task_id}" if task_id else admin.format_count(count, "message")
    if not (can_ask and is_terminal()):
        only = f" --task-id {shlex.quote(task_id)}" if task_id else ""
        command = f"purge {shlex.quote(name)}{only} --yes --reason 'why'"
        sentence = f"Nothing was removed. It would be {what}, parked for lock {name!r}."
        exit_with(WRONG_INPUT, f"{sentence} To skip the confirmation, write: {command}")
    try:
        if not yes and not click.confirm(f"Remove {what}?", default=False):
            exit_with(FOUND_NOTHING, "Nothing was removed.")
        return reason or str(click.prompt("Reason (for the history)", type=Text()))
    except click.Abort:
        click.echo()
        exit_with(FOUND_NOTHING, "Nothing was removed.")


def _nothing(name: str, task_id: str | None) -> str:
    if task_id is not None:
        return f"No message of task {task_id} is parked for lock {name!r}."
    return f"No message is parked for lock {name!r}."


def _print(purged: admin.Purged) -> None:
    for message in purged.messages[:_SHOWN]:
        echo(f"Removed task {message.holder.task}[{message.holder.task_id}].")
    if len(purged.messages) > _SHOWN:
        count = len(purged.messages)
        echo(f"… and {count - _SHOWN} more: {count} messages in all.")
    if purged.unmarked:
        click.echo(f"Note: {purged.unmarked}.", err=True)
