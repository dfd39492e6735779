"""The commands that pause and resume locks, and that set their limits."""

from __future__ import annotations

from typing import Any

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT
from celery_locks.cli.context import Context, echo, echo_json, exit_with, json_option, pass_context
from celery_locks.cli.options import by_option, for_option, reason_option
from celery_locks.validation import MAX_LIMIT

_exact_option = click.option(
    "--exact", is_flag=True, help="Take NAME literally, even if it contains * or ?."
)


@click.command()
@click.argument("name", metavar="NAME|GLOB")
@for_option
@reason_option
@by_option
@_exact_option
@json_option
@pass_context
def pause(
    context: Context,
    name: str,
    seconds: float | None,
    reason: str,
    by: str,
    exact: bool,
    as_json: bool,
) -> None:
    """Let nobody acquire a lock until it is resumed.

    Those that hold it finish. What others do is their on_conflict; those that wait stay in the
    queue. A NAME with * or ? is a glob: it pauses all names that match it, also those that nobody
    has used yet.
    """
    require_reason(reason)
    done = admin.pause(context.locks, name, seconds=seconds, reason=reason, by=by, exact=exact)
    _print(done, f"Paused {name!r}", as_json)


@click.command()
@click.argument("name", metavar="NAME|GLOB")
@reason_option
@by_option
@_exact_option
@json_option
@pass_context
def resume(context: Context, name: str, reason: str, by: str, exact: bool, as_json: bool) -> None:
    """End a pause; the next waiters get the lock.

    Write the NAME or the GLOB that was paused.
    """
    done = admin.resume(context.locks, name, reason=reason, by=by, exact=exact)
    if done.was_set:
        _print(done, f"Resumed {name!r}", as_json)
    elif as_json:
        _print(done, "", as_json)
    paused = [lock for lock in done.locks if lock.pause]
    for lock in paused[:5]:
        click.echo(f"Lock {lock.name!r} is still {lock.pause}.", err=True)
    if not done.was_set:
        exit_with(FOUND_NOTHING, f"{name!r} was not paused.")


@click.command()
@click.argument("name")
@click.argument("limit", type=click.IntRange(1, MAX_LIMIT), required=False)
@click.option("--reset", is_flag=True, help="Let the limits of the callers apply again.")
@for_option
@reason_option
@by_option
@json_option
@pass_context
def limit(
    context: Context,
    name: str,
    limit: int | None,
    reset: bool,
    seconds: float | None,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Set how many may hold a lock, whatever its callers say.

    If more hold it already, they finish. NAME is one lock, no pattern.
    """
    if reset == (limit is not None):
        exit_with(WRONG_INPUT, "Write a number, or --reset.")
    if reset and seconds is not None:
        exit_with(WRONG_INPUT, "--for has no effect with --reset.")
    if limit is None:
        done = admin.reset_limit(context.locks, name, reason=reason, by=by)
        if not done.was_set:
            exit_with(FOUND_NOTHING, f"No limit was set for {name!r}.")
        _print(done, f"Reset the limit of {name!r}", as_json)
        return
    require_reason(reason)
    done = admin.set_limit(context.locks, name, limit, seconds=seconds, reason=reason, by=by)
    _print(done, f"Set the limit of {name!r} to {limit}", as_json)
    if admin.is_glob(name):
        click.echo(f"{name!r} is the name of one lock here: a limit takes no pattern.", err=True)


def require_reason(reason: str) -> None:
    """Refuse a pause or limit without a reason: whoever finds it must know what it is for."""
    if not reason:
        exit_with(WRONG_INPUT, "Nothing was changed. Say why, for those who find it: --reason '…'")


def _print(done: admin.Overridden, action: str, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {"name": done.name, "was_set": done.was_set}
        echo_json({**fields, "locks": [lock.as_dict() for lock in done.locks]})
        return
    holders = admin.format_count(done.holders, "holder")
    echo(f"{action}: {holders}, {admin.format_count(done.waiters, 'waiter')}.")
